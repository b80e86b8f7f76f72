// SPDX-License-Identifier: Apache-2.0
#include "vfs/frozen/inode_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace vrun::vfs {

InodeTable::InodeTable(const Digest& root_digest, SavedView* saved) : saved_(saved) {
  root_ = NewNode(next_id_++, S_IFDIR);
  root_->lookups = 1;
  root_->directory = std::make_unique<DirectoryState>();
  root_->directory->digest = root_digest;
}

InodeTable::~InodeTable() = default;

Inode* InodeTable::NewNode(uint64_t nodeid, uint32_t mode) {
  auto inode = std::make_unique<Inode>();
  inode->nodeid = nodeid;
  inode->mode = mode;
  Inode* raw = inode.get();
  inodes_.emplace(raw->nodeid, std::move(inode));
  return raw;
}

Inode* InodeTable::New(uint64_t nodeid, const tree::Entry& entry) {
  Inode* inode = NewNode(nodeid, entry.mode);
  inode->version = entry.version();
  if (entry.is_directory()) {
    inode->directory = std::make_unique<DirectoryState>();
    inode->directory->digest = entry.child;
  } else if (entry.nlink > 1) {
    hard_links_.try_emplace(inode->version, inode);
  }
  return inode;
}

void InodeTable::AddLink(Inode* inode, Inode* parent, uint32_t index) {
  Link link{parent, index};
  const bool first = inode->link.parent == nullptr;
  if (saved_ != nullptr) {
    link.saved = saved_->inodes().Add({inode->nodeid, parent->nodeid, first ? inode->lookups : 0, index, 0});
    if (link.saved == SavedTable<SavedInode>::kNone) saved_->header().incomplete = 1;
  }
  if (first) {
    inode->link = link;
  } else {
    if (!inode->more_links) inode->more_links = std::make_unique<std::vector<Link>>();
    inode->more_links->push_back(link);
  }
  ++parent->children;
}

void InodeTable::Unsave(const Link& link) {
  if (saved_ != nullptr) saved_->inodes().Remove(link.saved);
}

void InodeTable::SaveLookups(const Inode& inode) {
  if (saved_ == nullptr || inode.link.saved == SavedTable<SavedInode>::kNone) return;
  saved_->inodes().At(inode.link.saved).lookups = inode.lookups;
}

void InodeTable::CountLookup(Inode* inode) {
  ++inode->lookups;
  SaveLookups(*inode);
}

bool InodeTable::Restore(Inode* parent, const SavedInode& record, uint32_t saved, const tree::Entry& entry) {
  Inode*& slot = parent->directory->children.at(record.index);
  if (slot != nullptr || record.nodeid == kRootId) return false;
  Inode* inode = Find(record.nodeid);
  if (inode == nullptr) {
    inode = New(record.nodeid, entry);
  } else if (inode->is_directory() || inode->version != entry.version()) {
    return false;
  }
  const Link link{parent, record.index, saved};
  if (inode->link.parent == nullptr) {
    inode->link = link;
  } else {
    if (!inode->more_links) inode->more_links = std::make_unique<std::vector<Link>>();
    inode->more_links->push_back(link);
  }
  ++parent->children;
  slot = inode;
  // Whichever link had the count in the saved record, the first link has it now.
  inode->lookups += record.lookups;
  if (inode->link.saved != saved && record.lookups > 0) {
    SaveLookups(*inode);
    saved_->inodes().At(saved).lookups = 0;
  }
  return true;
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
    // The same version has the same type and mode, unless home sends wrong data.
    if (it != hard_links_.end() && it->second->mode == entry.mode) child = it->second;
  }
  if (child == nullptr) {
    if (saved_ != nullptr) saved_->header().next_nodeid = next_id_ + 1;  // never reused, by any process
    child = New(next_id_++, entry);
  }
  AddLink(child, parent, index);
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
  SaveLookups(*inode);
  Drop(inode);
}

void InodeTable::Drop(Inode* inode) {
  // Goes upwards: a forgotten directory goes with its last child. A loop, because trees may be deep.
  std::vector<Inode*> check{inode};
  while (!check.empty()) {
    Inode* gone = check.back();
    check.pop_back();
    if (gone == root_ || gone->lookups > 0 || gone->children > 0) continue;
    const auto detach = [&](const Link& link) {
      if (link.parent == nullptr) return;
      Unsave(link);
      link.parent->directory->children[link.index] = nullptr;
      --link.parent->children;
      check.push_back(link.parent);
    };
    detach(gone->link);
    if (gone->more_links) std::for_each(gone->more_links->begin(), gone->more_links->end(), detach);
    // A parent is listed twice only if it has two links of one inode; sorting puts these together.
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
    Unsave(inode->link);
    inode->link = {};
    if (inode->more_links && !inode->more_links->empty()) {
      inode->link = inode->more_links->back();
      inode->more_links->pop_back();
      SaveLookups(*inode);
    }
  } else if (inode->more_links) {
    std::erase_if(*inode->more_links, [&](const Link& other) {
      if (other != link) return false;
      Unsave(other);
      return true;
    });
  }
  --link.parent->children;
}

void InodeTable::Replace(Inode* directory, const Digest& digest, LoadedDirectoryPtr loaded,
                         const std::vector<uint32_t>& moved) {
  DirectoryState& state = *directory->directory;
  state.digest = digest;
  if (!state.loaded) return;
  std::vector<Inode*> children(loaded->directory->size(), nullptr);
  // Two passes, because a link may move to the old index of another link.
  std::vector<std::pair<Inode*, uint32_t>> kept;
  for (uint32_t i = 0; i < state.children.size(); ++i) {
    Inode* child = state.children[i];
    if (child == nullptr) continue;
    RemoveLink(child, {directory, i});
    if (moved[i] != kGone) kept.emplace_back(child, moved[i]);
  }
  for (const auto& [child, index] : kept) {
    children[index] = child;
    AddLink(child, directory, index);
  }
  state.children = std::move(children);
  state.loaded = std::move(loaded);
}

}  // namespace vrun::vfs
