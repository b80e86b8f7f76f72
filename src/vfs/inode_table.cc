// SPDX-License-Identifier: Apache-2.0
#include "vfs/inode_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace vrun::vfs {

InodeTable::InodeTable(const Digest& root_digest) {
  root_ = New(S_IFDIR);
  root_->lookups = 1;
  root_->directory = std::make_unique<DirectoryState>();
  root_->directory->digest = root_digest;
}

InodeTable::~InodeTable() = default;

Inode* InodeTable::New(uint32_t mode) {
  auto inode = std::make_unique<Inode>();
  inode->nodeid = next_id_++;
  inode->mode = mode;
  Inode* raw = inode.get();
  inodes_.emplace(raw->nodeid, std::move(inode));
  return raw;
}

Inode* InodeTable::Find(uint64_t nodeid) {
  const auto it = inodes_.find(nodeid);
  return it == inodes_.end() ? nullptr : it->second.get();
}

Inode* InodeTable::Child(Inode* parent, uint32_t index, const tree::Entry& entry) {
  Inode*& slot = parent->directory->children.at(index);
  if (slot != nullptr) return slot;
  Inode* child = nullptr;
  const bool hard_link = !entry.is_directory() && entry.nlink > 1;
  if (hard_link) {
    const auto it = hard_links_.find(entry.version());
    // The same version has the same type and mode, unless home is making it up.
    if (it != hard_links_.end() && it->second->mode == entry.mode) child = it->second;
  }
  if (child == nullptr) {
    child = New(entry.mode);
    child->version = entry.version();
    if (entry.is_directory()) {
      child->directory = std::make_unique<DirectoryState>();
      child->directory->digest = entry.child;
    }
    if (hard_link) hard_links_.try_emplace(child->version, child);
  }
  if (child->link.parent == nullptr) {
    child->link = {parent, index};
  } else {
    if (!child->more_links) child->more_links = std::make_unique<std::vector<Link>>();
    child->more_links->push_back({parent, index});
  }
  ++parent->children;
  slot = child;
  return child;
}

void InodeTable::SetLoaded(Inode* directory, LoadedDirectoryPtr loaded) {
  directory->directory->children.assign(loaded->directory->size(), nullptr);
  directory->directory->loaded = std::move(loaded);
}

void InodeTable::Forget(uint64_t nodeid, uint64_t count) {
  Inode* inode = Find(nodeid);
  if (inode == nullptr || inode == root_) return;
  inode->lookups -= std::min(inode->lookups, count);
  Drop(inode);
}

void InodeTable::Drop(Inode* inode) {
  // Upwards: the last child of a forgotten directory takes it along. A loop, since trees may be deep.
  std::vector<Inode*> check{inode};
  while (!check.empty()) {
    Inode* gone = check.back();
    check.pop_back();
    if (gone == root_ || gone->lookups > 0 || gone->children > 0) continue;
    const auto detach = [&](const Link& link) {
      if (link.parent == nullptr) return;
      link.parent->directory->children[link.index] = nullptr;
      --link.parent->children;
      check.push_back(link.parent);
    };
    detach(gone->link);
    if (gone->more_links) std::for_each(gone->more_links->begin(), gone->more_links->end(), detach);
    // Twice in the list only as the parent of two links of one inode: those come one after the other.
    std::sort(check.begin(), check.end());
    check.erase(std::unique(check.begin(), check.end()), check.end());
    if (const auto it = hard_links_.find(gone->version); it != hard_links_.end() && it->second == gone) {
      hard_links_.erase(it);
    }
    inodes_.erase(gone->nodeid);
  }
}

std::optional<tree::Entry> InodeTable::EntryOf(const Inode& inode) const {
  if (inode.link.parent == nullptr) return std::nullopt;
  return inode.link.parent->directory->loaded->directory->At(inode.link.index);
}

std::optional<store::ObjectId> InodeTable::KnownId(const Inode& inode) const {
  if (inode.link.parent == nullptr) return std::nullopt;
  const auto& ids = inode.link.parent->directory->loaded->known_ids;
  const auto it = std::lower_bound(ids.begin(), ids.end(), inode.link.index,
                                   [](const auto& item, uint32_t index) { return item.first < index; });
  if (it == ids.end() || it->first != inode.link.index) return std::nullopt;
  return it->second;
}

std::optional<std::string> InodeTable::PathOf(const Inode& inode) const {
  std::vector<std::string_view> names;
  const Inode* at = &inode;
  while (at != root_) {
    if (at->link.parent == nullptr) return std::nullopt;
    names.push_back(at->link.parent->directory->loaded->directory->NameAt(at->link.index));
    at = at->link.parent;
  }
  if (names.empty()) return "/";
  std::string path;
  for (auto it = names.rbegin(); it != names.rend(); ++it) {
    path += '/';
    path += *it;
  }
  return path;
}

void InodeTable::RemoveLink(Inode* inode, const Link& link) {
  if (inode->link == link) {
    inode->link = {};
    if (inode->more_links && !inode->more_links->empty()) {
      inode->link = inode->more_links->back();
      inode->more_links->pop_back();
    }
  } else if (inode->more_links) {
    std::erase(*inode->more_links, link);
  }
  --link.parent->children;
}

void InodeTable::Replace(Inode* directory, const Digest& digest, LoadedDirectoryPtr loaded,
                         const std::vector<uint32_t>& moved) {
  DirectoryState& state = *directory->directory;
  state.digest = digest;
  if (!state.loaded) return;
  std::vector<Inode*> children(loaded->directory->size(), nullptr);
  // Two passes: a link that moves to the old index of another must not be taken for that one.
  std::vector<std::pair<Inode*, uint32_t>> kept;
  for (uint32_t i = 0; i < state.children.size(); ++i) {
    Inode* child = state.children[i];
    if (child == nullptr) continue;
    RemoveLink(child, {directory, i});
    if (moved[i] != kGone) kept.emplace_back(child, moved[i]);
  }
  for (const auto& [child, index] : kept) {
    children[index] = child;
    ++directory->children;
    if (child->link.parent == nullptr) {
      child->link = {directory, index};
    } else {
      if (!child->more_links) child->more_links = std::make_unique<std::vector<Link>>();
      child->more_links->push_back({directory, index});
    }
  }
  state.children = std::move(children);
  state.loaded = std::move(loaded);
}

}  // namespace vrun::vfs
