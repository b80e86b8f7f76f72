// SPDX-License-Identifier: Apache-2.0
// LazyRoot::Restore: restores the node ids and open files that another process gave the kernel.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "vfs/frozen/lazy_root.h"

namespace vrun::vfs {

void LazyRoot::Restore() {
  const SavedView::Header& header = saved_->header();
  passthrough_offered_ = passthrough_works_ = options_.passthrough && header.passthrough != 0;
  const size_t lost = RestoreInodes();
  uint64_t next = std::max<uint64_t>(header.next_nodeid, InodeTable::kRootId + 1);
  // Never reuses an id, whenever the other process died.
  SavedTable<SavedInode>& table = saved_->inodes();
  for (uint32_t slot = 0; slot < table.used(); ++slot) next = std::max(next, table.At(slot).nodeid + 1);
  inodes_.RestoreNextId(next);
  RestoreOpens();
  if (lost > 0) {
    LogError(
        "take over a view: {} files in use fail with ESTALE: their directories came neither from the store nor from "
        "home",
        lost);
  }
}

// From the root downwards, one level at a time: the entries of a level refer to the directories of the next.
size_t LazyRoot::RestoreInodes() {
  SavedTable<SavedInode>& table = saved_->inodes();
  std::unordered_map<uint64_t, std::vector<uint32_t>> below;  // slots by parent
  size_t left = 0;
  for (uint32_t slot = 0; slot < table.used(); ++slot) {
    if (table.At(slot).nodeid == 0) continue;
    below[table.At(slot).parent].push_back(slot);
    ++left;
  }
  std::vector<Inode*> level{inodes_.root()};
  std::vector<Inode*> all;
  while (!level.empty()) {
    std::vector<std::pair<Digest, std::string>> wanted;
    DirectoryCache::Loaded have;
    for (Inode* directory : level) {
      const Digest& digest = directory->directory->digest;
      if (!below.contains(directory->nodeid) || have.contains(digest)) continue;
      if (auto loaded = backend_.directories().Find(digest)) {
        have[digest] = std::move(loaded);
      } else {
        wanted.emplace_back(digest, inodes_.PathOf(*directory).value_or("/"));
      }
    }
    if (!wanted.empty()) {
      if (const Status got = backend_.directories().GetAll(tree_, wanted, &have); !got) {
        LogError("take over a view: cannot fetch directories in use: {}", Escape(got.error().message()));
      }
    }
    std::vector<Inode*> next;
    for (Inode* directory : level) {
      const auto slots = below.find(directory->nodeid);
      const auto loaded = have.find(directory->directory->digest);
      if (slots == below.end() || loaded == have.end()) continue;
      inodes_.SetLoaded(directory, loaded->second);
      for (const uint32_t slot : slots->second) {
        const SavedInode record = table.At(slot);
        if (record.index >= loaded->second->directory->size()) continue;
        if (!inodes_.Restore(directory, record, slot, loaded->second->directory->At(record.index))) continue;
        --left;
        Inode* inode = inodes_.Find(record.nodeid);
        all.push_back(inode);
        if (inode->is_directory()) next.push_back(inode);
      }
    }
    level = std::move(next);
  }
  // Inodes that were saved but never reported to the kernel. Deepest first and each once, because Drop removes parents
  // too.
  std::vector<uint64_t> unused;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if ((*it)->lookups == 0 && (*it)->children == 0) unused.push_back((*it)->nodeid);
  }
  for (const uint64_t nodeid : unused) inodes_.Forget(nodeid, 0);
  return left;
}

void LazyRoot::RestoreOpens() {
  SavedTable<SavedOpen>& table = saved_->opens();
  for (uint32_t slot = 0; slot < table.used(); ++slot) {
    SavedOpen& record = table.At(slot);
    if (record.nodeid == 0) continue;
    if (record.passthrough == 0 && record.backing != 0) {  // its last close was being processed
      transport_.CloseBacking(std::exchange(record.backing, 0));
    }
    if (record.cached == 0 && record.passthrough == 0) {
      table.Remove(slot);
      continue;
    }
    OpenFiles& files = open_files_[record.nodeid];
    files.cached = record.cached;
    files.passthrough = record.passthrough;
    files.backing = record.backing;
    files.saved = slot;
    if (const Inode* inode = inodes_.Find(record.nodeid)) files.content = ContentLocked(*inode);
  }
}

}  // namespace vrun::vfs
