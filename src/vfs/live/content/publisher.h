// SPDX-License-Identifier: Apache-2.0
// Decides when home gets the content of files written in a live view with a journal: when the file is closed; before
// home is told a name of it; and while it is open, appended content after a time or a number of bytes, and content
// written in place once nobody has written to it for a time.
//
// If the kernel sends no open requests, a CloseWatch reports closes (docs/decisions/0019). Home's content of a file is
// gone at home once our next version is published, so all of it is fetched before that.
//
// Without a journal this class does nothing.
//
// Thread safety: any thread. "Locked": with a TreeLock; the mutex of this class comes after it.
#pragma once

#include <atomic>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/live/content/home_teller.h"
#include "vfs/live/content/live_contents.h"
#include "vfs/live/kernel/kernel_notices.h"

namespace vrun::vfs {

class CloseWatch;

class Publisher {
 public:
  using Then = std::function<void(Reply)>;

  // The first five must outlive it. `bytes` and `micros`: as LiveViewOptions::publish_bytes.
  Publisher(JournaledTree& tree, HomeTeller& teller, LiveContents& contents, const KernelNotices& notices,
            TimerThread& timers, uint64_t bytes, int64_t micros)
      : tree_(tree),
        teller_(teller),
        contents_(contents),
        notices_(notices),
        timers_(timers),
        publish_bytes_(bytes),
        publish_micros_(micros) {}
  // The gate must be closed.
  ~Publisher();
  // Called once the tree has a journal.
  void Begin();

  // --- before a change

  // Runs `then` when there is room for a write, now or once home has acknowledged enough; answers with an error if
  // there never will be.
  void WithRoom(Reply reply, Then then);
  // Runs `then` when all of a file's content is on this node, if the file is about to be published.
  void WithContent(uint64_t nodeid, Reply reply, Then then);

  // --- what was written

  // The file has unpublished content.
  void NoteDirty(uint64_t nodeid);
  // A writer keeps the file open: publishes what was appended, if that is enough.
  void PublishAppended(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  void Publish(uint64_t nodeid);
  // Publishes the current content, if home has a place for it. 0, or an errno: not published now, retried later.
  int PublishLocked(LiveNode* node);
  // Content written to a closed file has no place at home: tells home, which reports it.
  void TellIfLostLocked(LiveNode* node);
  // As LiveView.
  uint64_t PublishAll();
  // Answers when home has all of the file's content.
  void Sync(uint64_t nodeid, Reply reply);

  // --- publish_closed.cc: closes, where the kernel sends no open requests

  // As LiveRoot.
  void WatchCloses(CloseWatch* closes);
  void Closed(uint64_t nodeid);
  void ClosesMissed();
  void SeeCloses();
  void SettleCloses();

 private:
  using Kind = LiveOperation::Kind;
  struct Dirty {
    int64_t since = 0;   // monotonic microseconds
    int64_t latest = 0;  // the last write
    bool owed = false;   // a publish was due, and failed
  };
  // Nobody has written to it for a while; a shorter while if it was written long ago, so that a program that never
  // pauses for long is seen too.
  bool IsQuiet(const Dirty& dirty, int64_t now) const;
  bool IsQuiet(uint64_t nodeid);
  void StartTimer();
  void Tick();
  std::string PlaceOfOvertakenLocked(const LiveNode& node);
  // Publishes all of them; returns those that failed.
  std::vector<uint64_t> PublishDirty();
  void ReportUnpublished(uint64_t nodeid);
  // Publishes a file that its writer keeps open.
  void PublishWritten(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  // Publishes once all content is here; while nobody has closed the file, only if it was appended or is quiet.
  void PublishWhole(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, bool closed);
  void WaitForWhole(int64_t micros);

  JournaledTree& tree_;
  HomeTeller& teller_;
  LiveContents& contents_;
  const KernelNotices& notices_;
  TimerThread& timers_;
  const uint64_t publish_bytes_;
  const int64_t publish_micros_;
  std::atomic<CloseWatch*> closes_{nullptr};

  Mutex dirty_mutex_;                                                        // guards all members below
  std::unordered_map<uint64_t, Dirty> dirty_ VRUN_GUARDED_BY(dirty_mutex_);  // by node
  TimerThread::Id tick_ = 0;
  // Nodes whose content is being fetched from home, with the number of closes since the request.
  std::unordered_map<uint64_t, size_t> completing_ VRUN_GUARDED_BY(dirty_mutex_);
  CondVar completed_;
};

}  // namespace vrun::vfs
