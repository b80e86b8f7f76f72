// SPDX-License-Identifier: Apache-2.0
// When home gets the content of files that are written in a live view with a journal: as soon as it is closed; before a
// name of it is told; and while it is open, what was appended, after a while or so many bytes.
//
// Where the kernel does not ask for opens, a CloseWatch tells what is closed (docs/decisions/0019). What home has of a
// file goes from there with the next version of ours: so all of it is brought here before that is published.
//
// Without a journal none of this does anything.
//
// Thread safety: any thread. "Locked": with a TreeLock; the mutex of this class comes after it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

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
  // The gate is closed.
  ~Publisher();
  // The tree has a journal.
  void Begin();

  // --- before a change

  // Runs `then` when there is room for what is going to be written, now or once home has taken some; answers itself
  // where there never will be.
  void WithRoom(Reply reply, Then then);
  // Runs `then` when all of a file's content is on this node, if it is about to be published.
  void WithContent(uint64_t nodeid, Reply reply, Then then);

  // --- what was written

  // A file has something that was not published.
  void NoteDirty(uint64_t nodeid);
  // A writer goes on and on: what it has appended, if that is much.
  void PublishAppended(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  void Publish(uint64_t nodeid);
  // Home gets the content as it is, if there is a place for it. 0, or an errno: it has not, and is published later.
  int PublishLocked(LiveNode* node);
  // What was written to a file that is closed goes nowhere: home is told, and says so.
  void TellIfLostLocked(LiveNode* node);
  // As LiveView.
  uint64_t PublishAll();
  // Answers when home has all of the file.
  void Sync(uint64_t nodeid, Reply reply);

  // --- publish_closed.cc: what is closed, where opens are no requests

  // As LiveRoot.
  void WatchCloses(CloseWatch* closes);
  void Closed(uint64_t nodeid);
  void ClosesMissed();
  void SeeCloses();
  void SettleCloses();

 private:
  using Kind = LiveOperation::Kind;
  struct Dirty {
    int64_t since = 0;  // monotonic microseconds
    bool owed = false;  // it was to be published, and could not be
  };
  void StartTimer();
  void Tick();
  std::string PlaceOfOvertakenLocked(const LiveNode& node);
  // All of it. Returned: what could not be.
  std::vector<uint64_t> PublishDirty();
  void ReportUnpublished(uint64_t nodeid);
  // Of one that its writer goes on with.
  void PublishWritten(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);
  // Once all of it is here; while nobody has closed it only what was appended.
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

  std::mutex dirty_mutex_;                     // guards all that follows
  std::unordered_map<uint64_t, Dirty> dirty_;  // by node
  TimerThread::Id tick_ = 0;
  // Nodes of which home's part is on its way, and how often they were closed since it was asked for.
  std::unordered_map<uint64_t, size_t> completing_;
  std::condition_variable completed_;
};

}  // namespace vrun::vfs
