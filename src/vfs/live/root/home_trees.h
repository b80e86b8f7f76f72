// SPDX-License-Identifier: Apache-2.0
// Merges home's next tree into the tree that a live view shows (LiveMerge does the work), and processes home's
// acknowledgements.
//
// If home has a change of ours but has not yet reported its version, it cannot be told from somebody else's change. So
// a tree counts as containing our changes only up to the last acknowledgement, and is merged again when more arrive.
//
// Thread safety: any thread. Advance may block on the kernel, so do not call it on a thread that answers requests.
#pragma once

#include <vector>

#include "base/thread/mutex.h"
#include "vfs/live/kernel/kernel_notices.h"
#include "vfs/live/kernel/live_push.h"
#include "vfs/live/root/live_claims.h"
#include "vfs/live/root/live_directories.h"

namespace vrun::vfs {

class HomeTrees {
 public:
  // All must outlive it, except `root`, the root entry of the shown tree.
  HomeTrees(Backend& backend, JournaledTree& tree, LiveContents& contents, LiveDirectories& directories,
            KernelNotices& notices, LiveClaims& claims, const tree::Entry& root)
      : backend_(backend),
        tree_(tree),
        contents_(contents),
        directories_(directories),
        notices_(notices),
        claims_(claims),
        root_(root) {}

  // As LiveView. Notifies through `dispatcher`. `push`: null, or looks up directories that home has moved.
  Status Advance(Dispatcher& dispatcher, const Digest& tree, uint64_t included, LivePush* push);
  Status AdvanceAgain(Dispatcher& dispatcher, LivePush* push);  // merges the same tree again: something was released
  void Acknowledge(uint64_t nodeid, const tree::FileVersion& version);
  // As LiveStream::OnApplied.
  void OnAcknowledged(uint64_t number, const std::vector<LiveStream::Applied>& applied);
  // Restores the tree as another process left it; call before the first request.
  void Restore(const LiveState& state);

 private:
  Status AdvanceLocked(Dispatcher& dispatcher, const Digest& tree, const tree::Entry& root, LivePush* push)
      VRUN_REQUIRES(advance_mutex_);
  void LoadRestored() VRUN_REQUIRES(advance_mutex_);
  // With a TreeLock.
  void AppliedLocked(LiveNode* node, const LiveStream::Applied& one);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  LiveDirectories& directories_;
  KernelNotices& notices_;
  LiveClaims& claims_;

  Mutex advance_mutex_;  // held during a whole Advance; taken before the tree's lock
  uint64_t included_ VRUN_GUARDED_BY(advance_mutex_) = 0;
  tree::Entry root_ VRUN_GUARDED_BY(advance_mutex_);       // of the shown tree
  bool restored_ VRUN_GUARDED_BY(advance_mutex_) = false;  // no tree was merged since the take-over

  // Guarded by the tree's lock.
  uint64_t acknowledged_ = 0;  // with this operation and those before, `at_home` of the nodes is right
  bool behind_ = false;        // the shown tree contains later operations
};

}  // namespace vrun::vfs
