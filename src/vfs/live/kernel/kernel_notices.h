// SPDX-License-Identifier: Apache-2.0
// What the kernel may cache of a live view and for how long, and the notifications that end this.
//
// Names, absent names, attributes and pages are cached for ever, because all local changes come through the kernel.
// After a merge of home's changes the kernel is notified (Tell). Until then the notices are in the journal, so that the
// next server can send them. In doubt (live_doubt.h) nothing is cached, and each request asks home first.
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

  // The kernel sends no open requests, as agreed at INIT.
  bool no_open() const { return no_open_.load(); }
  void SetNoOpen(bool no_open) { no_open_ = no_open; }

  // --- what it may cache

  uint64_t ValidSeconds() const;  // for what it is told
  // As ValidSeconds, for a name that does not exist. Notes that the kernel was told so.
  uint64_t AbsentSecondsLocked(uint64_t directory, std::string_view name);
  // The kernel is about to forget that it has been told so of names in this directory.
  LiveDoubt::Names TakeAbsentIn(uint64_t directory) { return doubt_.TakeAbsentIn(directory); }
  bool doubted() const { return doubt_.doubted(); }
  // Runs `then`; in doubt, after home has been asked.
  void AfterDoubt(Reply reply, std::function<void(Reply)> then);
  // As LiveView::Doubt.
  void Doubt(Dispatcher& dispatcher, bool doubt);

  // --- notifications to it

  // Adds notices to the journal together with their merge. If the server dies before the kernel has heard them all, the
  // next server sends the rest.
  void AddLocked(const LiveNotices& notices);
  const LiveNotices& untold() const { return untold_; }  // Locked
  // Sends these notices, which are those of untold() that must be sent now; untold() is empty afterwards. `waited`:
  // callbacks of requests that wait for this news. `moved`: names of directories that are elsewhere now.
  Status Tell(Dispatcher& dispatcher, const LiveNotices& notices, const std::vector<std::function<void()>>& waited,
              const Names& moved);
  // After a take-over: sends the notices that the previous server did not send.
  Status TellRestored(Dispatcher& dispatcher);
  // Invalidates attributes only. The kernel takes no lock for that under which a request may wait, so an operation may
  // call it.
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
  LiveNotices untold_;       // from merges; guarded by the tree's lock, like left_untold_
  LiveNotices left_untold_;  // from the previous server
};

}  // namespace vrun::vfs
