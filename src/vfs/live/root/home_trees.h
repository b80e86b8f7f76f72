// SPDX-License-Identifier: Apache-2.0
// Takes home's next tree into the one that a live view shows (LiveMerge does the work), and what home acknowledges.
//
// What home has of ours but has not yet said as which version could not be told from a change of somebody else's: so a
// tree counts as having our changes only as far as they are acknowledged, and is taken once more when the rest is.
//
// Thread safety: any thread; Advance may block on the kernel, so not on a thread that answers requests.
#pragma once

#include <mutex>
#include <vector>

#include "vfs/live/kernel/kernel_notices.h"
#include "vfs/live/kernel/live_push.h"
#include "vfs/live/root/live_directories.h"

namespace vrun::vfs {

class HomeTrees {
 public:
  // All but `root`, of the tree that is shown, must outlive it.
  HomeTrees(Backend& backend, JournaledTree& tree, LiveContents& contents, LiveDirectories& directories,
            KernelNotices& notices, const tree::Entry& root)
      : backend_(backend),
        tree_(tree),
        contents_(contents),
        directories_(directories),
        notices_(notices),
        root_(root) {}

  // As LiveView. Notifies through `dispatcher`. `push`: null, or looks up what home has moved.
  Status Advance(Dispatcher& dispatcher, const Digest& tree, uint64_t included, LivePush* push);
  Status AdvanceAgain(Dispatcher& dispatcher, LivePush* push);  // with the same tree: something was released
  void Acknowledge(uint64_t nodeid, const tree::FileVersion& version);
  // As LiveStream::OnApplied.
  void OnAcknowledged(uint64_t number, const std::vector<LiveStream::Applied>& applied);
  // The tree is as another process left it; before the first request.
  void Restore(const LiveState& state);

 private:
  // With advance_mutex_ held.
  Status AdvanceLocked(Dispatcher& dispatcher, const Digest& tree, const tree::Entry& root, LivePush* push);
  void LoadRestored();
  // With a TreeLock.
  void AppliedLocked(LiveNode* node, const LiveStream::Applied& one);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  LiveDirectories& directories_;
  KernelNotices& notices_;

  std::mutex advance_mutex_;  // over all of an Advance; before the tree's
  uint64_t included_ = 0;     // guarded by it, as root_
  tree::Entry root_;          // of the tree that is shown
  bool restored_ = false;     // guarded by it: no tree was taken since the take-over

  // Guarded by the tree's lock.
  uint64_t acknowledged_ = 0;  // with this operation and those before, `at_home` of the nodes is right
  bool behind_ = false;        // the tree that is shown has later ones
};

}  // namespace vrun::vfs
