// SPDX-License-Identifier: Apache-2.0
// Handles files of home that a job removes or replaces by a rename while it has them open and has read nothing of them.
//
// The server does not know which files are open (docs/decisions/0019). But the kernel forgets a file without names at
// once unless somebody has it open, and home keeps the content until it hears of the removal. So home is told when the
// kernel has forgotten the file. If that takes longer than a few milliseconds, as much is fetched as a first read would
// fetch: all of a small file, or a page of a large one, whose rest home then keeps (home/serve/lent_files.h). If the
// server dies meanwhile, nothing stays held: the next server tells home at once.
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

  // Call before the node loses its last name; null: no such node.
  std::optional<Removed> LosesContentLocked(const LiveNode* node) const;
  // The name is gone; holds the last operation, which tells home so.
  void HoldLocked(const std::optional<Removed>& removed);
  // The operation that waits for the node; 0: none. Unhold it without the tree's lock.
  uint64_t TakeHeldLocked(uint64_t nodeid);

 private:
  void Keep(const Removed& removed, uint64_t number);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  const KernelNotices& notices_;
  std::unordered_map<uint64_t, uint64_t> held_;  // node -> operation that waits for it; guarded by the tree's lock
};

}  // namespace vrun::vfs
