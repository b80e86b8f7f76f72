// SPDX-License-Identifier: Apache-2.0
// Sends what is written in a live view home: the operations of its journal as messages of proto/task.proto, in the
// order in which they happened, many under way at once.
//
//   view's operation -> Add -> (journal) -> Next -> wire -> home/apply/apply.h -> WriteBackAck -> Acknowledge
//
// The receiver may disconnect: Resume continues after what it has. While it is away the operations stay in the journal
// and their content in backing files, up to `most_bytes` and `most_operations`; then writers wait. A message's number
// is its operation's number << 24 plus its position in it; the last message has the highest position. So the
// acknowledged number is all that has to be remembered.
//
// Thread safety: any thread; one caller of Next at a time. Callbacks run without a lock held, on the thread that caused
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/task.pb.h"
#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

struct LiveStreamOptions {
  uint64_t window_bytes = 64u << 20;  // sent and not acknowledged
  size_t window_operations = 4096;
  // Limits for operations not acknowledged, sent or not. Beyond these, writers wait.
  uint64_t most_bytes = 8ull << 30;
  size_t most_operations = 500'000;
};

struct LiveStreamStats {
  uint64_t operations = 0;    // waiting or under way
  uint64_t bytes = 0;         // of content in them
  uint64_t acknowledged = 0;  // last operation that home has
  uint64_t last = 0;          // last operation
  uint64_t sent_bytes = 0;    // of content, ever
  uint64_t dropped = 0;       // operations that were cancelled before they were sent
  uint64_t waiting = 0;       // writers waiting for room
};

class LiveStream {
 public:
  static constexpr unsigned kPlaceBits = 24;
  static constexpr uint64_t kLastPlace = (1ull << kPlaceBits) - 1;

  // Home has everything up to operation `number`; what it reported of the operations that placed something.
  struct Applied {
    uint64_t number = 0;
    uint64_t node = 0;
    tree::FileVersion version;    // its version at home now
    int64_t before_ctime_ns = 0;  // of the version that it replaced; 0: the operation made it
    bool refused = false;         // the operation is exclusive, and its name was taken
  };
  using OnApplied = std::function<void(uint64_t number, const std::vector<Applied>& applied)>;

  explicit LiveStream(LiveStreamOptions options) : options_(options) {}
  LiveStream(const LiveStream&) = delete;
  LiveStream& operator=(const LiveStream&) = delete;

  // --- for the connection to home ---

  // Called when Next had nothing before and has something now. Set once, before anything is added.
  void SetReady(std::function<void()> ready);
  // The next message, at most about 1 MiB. nullopt: nothing now, or the window is full. An error: written content
  // cannot be read; the next call retries its operation.
  Result<std::optional<v1::WriteBack>> Next();
  // The receiver has applied everything up to `sequence` durably; later messages are sent (again).
  void Resume(uint64_t sequence);
  void Acknowledge(const v1::WriteBackAck& ack);
  // Whether home understands exclusive operations (LiveAck.claims).
  void SetTakesClaims(bool takes) { takes_claims_ = takes; }
  bool takes_claims() const { return takes_claims_.load(); }
  LiveStreamStats stats() const;
  // Runs `done` when home has operation `number` (0: all up to now), perhaps before this returns.
  void WhenAcknowledged(uint64_t number, std::function<void()> done);

  // --- for the view ---

  void SetOnApplied(OnApplied on_applied) { on_applied_ = std::move(on_applied); }
  // Restores what a journal had left. Call before anything else. Numbers that home may have heard of are not reused,
  // even if the journal has lost its end (after a machine failure).
  void Restore(std::map<uint64_t, LiveOperation> operations, uint64_t acknowledged, uint64_t next);
  // Numbers the operation, queues it and returns the number. The journal must have it before Next may send it: between
  // Add and Release nothing new is sent. REQUIRES: one thread at a time (the tree's lock).
  uint64_t Add(LiveOperation operation);
  void Release(uint64_t upto);  // the journal has all operations up to this one
  // Does not send this operation and later ones until Unhold, which does nothing if it is not held. Only for the last
  // added operation, before its release.
  void Hold(uint64_t number);
  void Unhold(uint64_t number);
  // A file was deleted again. If home has heard nothing of it, removes its operations and returns them (keep them until
  // the journal knows). Empty: home has heard of it, or other operations depend on its content. Home gets the numbers
  // as operations that did nothing.
  std::vector<LiveOperation> TakeBack(uint64_t node);
  // Visits unacknowledged operations in order, for a checkpoint.
  void ForEach(const std::function<void(const LiveOperation&)>& visit) const;
  uint64_t acknowledged() const;
  uint64_t last() const;
  // Whether writers must wait; if so, `go` runs once there is room.
  bool MustWait(std::function<void()> go);
  bool HasRoom() const;

 private:
  struct Item {
    LiveOperation operation;
    uint64_t bytes = 0;
    bool sent = false;  // sending has begun
  };
  // Position in the operation that is being sent.
  struct Cursor {
    uint64_t number = 0;  // 0: none
    uint64_t place = 0;
    size_t range = 0;
    uint64_t done = 0;  // bytes done of the range
  };
  void NoteLocked(const LiveOperation& op) VRUN_REQUIRES(mutex_);
  void NoteOverLocked(const LiveOperation& op) VRUN_REQUIRES(mutex_);
  const Item* NextItemLocked() VRUN_REQUIRES(mutex_);
  std::optional<v1::WriteBack> NextGapLocked() VRUN_REQUIRES(mutex_);
  void RewindLocked(uint64_t after) VRUN_REQUIRES(mutex_);
  std::vector<std::function<void()>> TakeServedLocked() VRUN_REQUIRES(mutex_);
  void AskForWhole(uint64_t number);
  void Ready() const {
    if (ready_) ready_();
  }

  const LiveStreamOptions options_;
  std::atomic<bool> takes_claims_{false};
  OnApplied on_applied_;
  std::function<void()> ready_;

  mutable Mutex mutex_;
  std::map<uint64_t, Item> items_ VRUN_GUARDED_BY(mutex_);  // by number
  uint64_t next_number_ VRUN_GUARDED_BY(mutex_) = 1;
  uint64_t released_ VRUN_GUARDED_BY(mutex_) = 0;  // may be sent up to this one
  std::set<uint64_t> held_ VRUN_GUARDED_BY(mutex_);
  uint64_t acknowledged_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t sent_ VRUN_GUARDED_BY(mutex_) = 0;   // last operation whose sending has begun
  uint64_t epoch_ VRUN_GUARDED_BY(mutex_) = 0;  // number of Resume calls
  Cursor cursor_ VRUN_GUARDED_BY(mutex_);
  uint64_t flying_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  size_t flying_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t sent_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ VRUN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::vector<uint64_t>> of_node_
      VRUN_GUARDED_BY(mutex_);  // its unacknowledged operations
  std::multimap<uint64_t, std::function<void()>> waiting_
      VRUN_GUARDED_BY(mutex_);                                         // callbacks that wait for an acknowledgement
  std::deque<std::function<void()>> blocked_ VRUN_GUARDED_BY(mutex_);  // callbacks that wait for room
};

}  // namespace vrun::vfs
