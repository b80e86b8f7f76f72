// SPDX-License-Identifier: Apache-2.0
// LazyRoot::Advance: moves from one tree to the next while the kernel caches everything for ever.
//
// A name is invalidated if it is new (a negative entry may be cached), gone, of another type, or refers to another
// version of a file. The kernel then looks it up again and gets a new node id, so that pages of old content never
// appear under the new one. A directory that stays a directory keeps its node id; its cached attributes and listings
// are invalidated. Everything below an equal digest is left alone, in the kernel and here.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread/mutex.h"
#include "vfs/frozen/lazy_root.h"

namespace vrun::vfs {
namespace {

using Loaded = DirectoryCache::Loaded;

// Walks two directories in parallel: fn(old index or kGone, new index or kGone), in order of names.
template <typename Fn>
void Merge(const tree::Directory& before, const tree::Directory& after, Fn fn) {
  size_t i = 0;
  size_t j = 0;
  while (i < before.size() || j < after.size()) {
    int order = 0;
    if (i == before.size()) {
      order = 1;
    } else if (j == after.size()) {
      order = -1;
    } else {
      order = before.NameAt(i).compare(after.NameAt(j));
    }
    fn(order <= 0 ? static_cast<uint32_t>(i) : InodeTable::kGone,
       order >= 0 ? static_cast<uint32_t>(j) : InodeTable::kGone);
    if (order <= 0) ++i;
    if (order >= 0) ++j;
  }
}

bool SameAttributes(tree::Entry a, tree::Entry b) {
  a.child = b.child = Digest{};
  return a == b;
}

}  // namespace

struct LazyRoot::Changes {
  std::vector<std::pair<uint64_t, std::string>> entries;  // names to look up again
  std::vector<uint64_t> listings;                         // directories whose names changed
  std::vector<uint64_t> attributes;                       // nodes that stay, with changed attributes
};

bool LazyRoot::FindMissing(const Inode& directory, const std::string& path, const LoadedDirectoryPtr& next,
                           const Loaded& have, std::vector<std::pair<Digest, std::string>>* missing) const {
  const tree::Directory& before = *directory.directory->loaded->directory;
  const tree::Directory& after = *next->directory;
  Merge(before, after, [&](uint32_t i, uint32_t j) {
    if (i == InodeTable::kGone || j == InodeTable::kGone) return;
    const Inode* child = directory.directory->children[i];
    if (child == nullptr || !child->is_directory() || !child->directory->loaded) return;
    if (before.EncodedAt(i) == after.EncodedAt(j)) return;
    const tree::Entry entry = after.At(j);
    if (!entry.is_directory() || entry.child == child->directory->digest) return;
    const std::string below = (path == "/" ? "" : path) + "/" + entry.name;
    if (const auto it = have.find(entry.child); it != have.end()) {
      FindMissing(*child, below, it->second, have, missing);
    } else {
      missing->emplace_back(entry.child, below);
    }
  });
  return missing->empty();
}

void LazyRoot::Apply(Inode* directory, const Digest& digest, const LoadedDirectoryPtr& next, const Loaded& have,
                     Changes* changes) {
  const LoadedDirectoryPtr held = directory->directory->loaded;
  const tree::Directory& before = *held->directory;
  const tree::Directory& after = *next->directory;
  std::vector<uint32_t> moved(before.size(), InodeTable::kGone);
  std::vector<uint64_t> orphans;
  struct Below {
    Inode* child;
    Digest digest;
  };
  std::vector<Below> below;
  Merge(before, after, [&](uint32_t i, uint32_t j) {
    if (i == InodeTable::kGone) {
      changes->entries.emplace_back(directory->nodeid, after.NameAt(j));
      return;
    }
    Inode* child = directory->directory->children[i];
    if (child == nullptr) return;  // the kernel does not know it
    if (j != InodeTable::kGone) {
      if (before.EncodedAt(i) == after.EncodedAt(j)) {
        moved[i] = j;
        return;
      }
      const tree::Entry was = before.At(i);
      const tree::Entry is = after.At(j);
      const bool same_directory = was.is_directory() && is.is_directory();
      if (same_directory || (was.is_regular() && is.is_regular() && was.version() == is.version())) {
        moved[i] = j;
        child->mode = is.mode;
        if (!SameAttributes(was, is)) changes->attributes.push_back(child->nodeid);
        if (same_directory && was.child != is.child) below.push_back({child, is.child});
        return;
      }
    }
    changes->entries.emplace_back(directory->nodeid, before.NameAt(i));
    orphans.push_back(child->nodeid);
  });
  changes->listings.push_back(directory->nodeid);
  inodes_.Replace(directory, digest, next, moved);
  for (const Below& item : below) {
    if (item.child->directory->loaded) {
      Apply(item.child, item.digest, have.at(item.digest), have, changes);
    } else {
      inodes_.Replace(item.child, item.digest, nullptr, {});
    }
  }
  // Inodes that the kernel had already forgotten and that existed only for their children.
  for (const uint64_t orphan : orphans) inodes_.Forget(orphan, 0);
}

Status LazyRoot::Advance(Dispatcher& dispatcher, const Digest& tree) {
  if (tree == this->tree()) return {};
  VRUN_ASSIGN(tree::Entry root, FetchRootEntry(backend_, tree));
  Loaded have;
  Changes changes;
  for (;;) {
    std::vector<std::pair<Digest, std::string>> missing;
    {
      MutexLock lock(mutex_);
      Inode* top = inodes_.root();
      const bool differs = top->directory->digest != root.child;
      if (differs && top->directory->loaded) {
        if (const auto it = have.find(root.child); it != have.end()) {
          FindMissing(*top, "/", it->second, have, &missing);
        } else {
          missing.emplace_back(root.child, "/");
        }
      }
      if (missing.empty()) {
        // From here until the kernel is notified, another process could not interpret the saved records.
        if (saved_ != nullptr) saved_->header().advancing = 1;
        if (!SameAttributes(root, root_)) changes.attributes.push_back(InodeTable::kRootId);
        if (differs && top->directory->loaded) {
          Apply(top, root.child, have.at(root.child), have, &changes);
        } else if (differs) {
          inodes_.Replace(top, root.child, nullptr, {});
        }
        tree_ = tree;
        if (saved_ != nullptr) saved_->SetTree(tree);
        top->mode = root.mode;
        root_ = std::move(root);
        break;
      }
    }
    VRUN_TRY(backend_.directories().GetAll(tree, missing, &have));
  }
  // Without any lock: the kernel takes the directory's own lock for these notices, and a holder of that lock may wait
  // for our answer.
  int failure = 0;
  const auto note = [&](int error) {
    if (error != 0 && error != ENOENT) failure = error;
  };
  for (const auto& [parent, name] : changes.entries) note(dispatcher.InvalidateEntry(parent, name));
  for (const uint64_t node : changes.listings) note(dispatcher.InvalidateInode(node));
  for (const uint64_t node : changes.attributes) note(dispatcher.InvalidateAttributes(node));
  if (failure != 0) return ErrnoError(failure, "invalidate names of a view");
  if (saved_ != nullptr) saved_->header().advancing = 0;
  return {};
}

}  // namespace vrun::vfs
