// SPDX-License-Identifier: Apache-2.0
// Files of home's that a job removes, or renames another over, while it has them open and has read nothing.
//
// Nothing tells which files are open (docs/decisions/0019). But the kernel forgets a file without names at once unless
// somebody has it open, and until home hears of the removal it has the content. So home hears of it when the kernel has
// forgotten the file; if it has not after a few milliseconds, as much is fetched as a first read would fetch: all of
// what is small, a page of what is large, of which home then holds the rest (home/serve/lent_files.h). A server that
// dies meanwhile leaves nothing held: the next one tells home at once.
//
// Thread safety: any thread. "Locked": with a TreeLock.
#pragma once

#include <optional>

#include "vfs/live/content/live_contents.h"
#include "vfs/live/kernel/kernel_notices.h"

namespace vrun::vfs {

class RemovedFiles {
 public:
  struct Removed {
    uint64_t nodeid = 0;
    FileContent::Place place;
    tree::FileVersion version;
    std::optional<store::ObjectId> known_id;
  };
  // All must outlive it.
  RemovedFiles(Backend& backend, JournaledTree& tree, LiveContents& contents, const KernelNotices& notices)
      : backend_(backend), tree_(tree), contents_(contents), notices_(notices) {}

  // Before it loses its last name; null: no such node.
  std::optional<Removed> LosesContentLocked(const LiveNode* node) const;
  // It has lost it, which the last operation tells.
  void HoldLocked(const std::optional<Removed>& removed);
  // The operation that waits for the node; 0: none. To be unheld without the lock.
  uint64_t TakeHeldLocked(uint64_t nodeid);

 private:
  void Keep(const Removed& removed, uint64_t number);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  const KernelNotices& notices_;
  std::unordered_map<uint64_t, uint64_t> held_;  // node -> the operation that waits for it; guarded by the tree's lock
};

}  // namespace vrun::vfs
