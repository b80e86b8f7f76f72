// SPDX-License-Identifier: Apache-2.0
// What the kernel caches of a live view, for how long, and what it is told when that is not so any more.
//
// Names, absent names, attributes and pages are cached for ever, since all changes of the tree come through it. What a
// merge of home's changes is told afterwards (Tell); until the kernel has heard it, it is in the journal, so that the
// next server can tell it. In doubt (live_doubt.h) nothing is cached, and each request asks home first.
//
// Thread safety: any thread; one Tell at a time. "Locked": with a TreeLock.
#pragma once

#include <atomic>
#include <set>
#include <vector>

#include "base/result.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/live/kernel/live_doubt.h"
#include "vfs/live/tree/journaled_tree.h"

namespace vrun::vfs {

class KernelNotices {
 public:
  using Names = std::set<std::pair<uint64_t, std::string>>;

  // The first three must outlive it. `on_doubt`: as LiveViewOptions.
  KernelNotices(JournaledTree& tree, Transport& transport, TimerThread& timers, std::function<void()> on_doubt)
      : tree_(tree), transport_(transport), doubt_(&timers, std::move(on_doubt)) {}

  // Opens are no requests, as agreed with the kernel at INIT.
  bool no_open() const { return no_open_.load(); }
  void SetNoOpen(bool no_open) { no_open_ = no_open; }

  // --- what it may cache

  uint64_t ValidSeconds() const;  // of what it is told
  // The same, of a name that is not there, which is noted.
  uint64_t AbsentSecondsLocked(uint64_t directory, std::string_view name);
  // Runs `then` when home has been asked, where it is in doubt.
  void AfterDoubt(Reply reply, std::function<void(Reply)> then);
  // As LiveView::Doubt.
  void Doubt(Dispatcher& dispatcher, bool doubt);

  // --- what it is told

  // In the journal with the merge that they are of: a server that dies before the kernel has heard all leaves the rest
  // to the next one.
  void AddLocked(const LiveNotices& notices);
  const LiveNotices& untold() const { return untold_; }  // Locked
  // Tells it these, which are all of untold(); nothing is untold afterwards. `waited`: who waits for this word of
  // home's. `moved`: names of directories that are elsewhere.
  Status Tell(Dispatcher& dispatcher, const LiveNotices& notices, const std::vector<std::function<void()>>& waited,
              const Names& moved);
  // After a take-over: what the server before had not told.
  Status TellRestored(Dispatcher& dispatcher);
  // Of attributes alone, which takes no lock in the kernel that anybody waits under: allowed from an operation.
  void ForgetAttributes(uint64_t nodeid);

  // --- the journal

  void Restore(LiveState* state);  // before the first request
  void AddToCheckpointLocked(LiveFrame* all) const;

 private:
  Status Send(Dispatcher& dispatcher, const LiveNotices& notices, const std::vector<std::function<void()>>& waited,
              const Names& moved);
  void ToldLocked(LiveNotices* told);

  JournaledTree& tree_;
  Transport& transport_;
  std::atomic<bool> no_open_{false};
  LiveDoubt doubt_;
  LiveNotices untold_;       // of merges; guarded by the tree's lock, as left_untold_
  LiveNotices left_untold_;  // of the server before
};

}  // namespace vrun::vfs
