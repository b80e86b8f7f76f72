// SPDX-License-Identifier: Apache-2.0
// What is written in a live view on its way home: the operations of its journal as messages of proto/task.proto, in the
// order of their history, many under way at once.
//
//   view's operation -> Add -> (journal) -> Next -> wire -> home/apply/apply.h -> WriteBackAck -> Acknowledge
//
// The receiver comes and goes: Resume begins again after what it has. While it is away the operations stay in the
// journal and their content in backing files, up to `most_bytes` and `most_operations`; then writers wait.
// The number of a message is its operation's number << 24 plus its place in it, which is the highest for the last, so
// an acknowledgement says all that has to be remembered.
//
// Thread safety: any thread; Next by one at a time. Callbacks run without a lock held, on the thread that caused them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "proto/task.pb.h"
#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

struct LiveStreamOptions {
  uint64_t window_bytes = 64u << 20;  // sent and not acknowledged
  size_t window_operations = 4096;
  // Not acknowledged, whether sent or not. Beyond these whoever writes waits.
  uint64_t most_bytes = 8ull << 30;
  size_t most_operations = 500'000;
};

struct LiveStreamStats {
  uint64_t operations = 0;    // waiting or under way
  uint64_t bytes = 0;         // of content in them
  uint64_t acknowledged = 0;  // number of the last operation that home has
  uint64_t last = 0;          // number of the last operation
  uint64_t sent_bytes = 0;    // of content, ever
  uint64_t dropped = 0;       // operations that were over before they were sent
  uint64_t waiting = 0;       // writers that wait for room
};

class LiveStream {
 public:
  static constexpr unsigned kPlaceBits = 24;
  static constexpr uint64_t kLastPlace = (1ull << kPlaceBits) - 1;

  // Home has everything up to operation `number`; what it said of those that put something in place.
  struct Applied {
    uint64_t number = 0;
    uint64_t node = 0;
    tree::FileVersion version;    // that it is at home now
    int64_t before_ctime_ns = 0;  // of the version of which it is the next; 0: the operation made it
  };
  using OnApplied = std::function<void(uint64_t number, const std::vector<Applied>& applied)>;

  explicit LiveStream(LiveStreamOptions options) : options_(options) {}
  LiveStream(const LiveStream&) = delete;
  LiveStream& operator=(const LiveStream&) = delete;

  // --- whoever carries the messages ---

  // May be called when Next had nothing and has something now. Once: before anything is added.
  void SetReady(std::function<void()> ready);
  // The next message, at most about 1 MiB. nullopt: nothing now, or the window is full. An error: content that was
  // written cannot be read; its operation comes again next.
  Result<std::optional<v1::WriteBack>> Next();
  // A receiver that has applied everything up to `sequence` durably; what follows is sent (again).
  void Resume(uint64_t sequence);
  void Acknowledge(const v1::WriteBackAck& ack);
  LiveStreamStats stats() const;
  // Runs `done` when home has operation `number` (0: all up to now), perhaps at once.
  void WhenAcknowledged(uint64_t number, std::function<void()> done);

  // --- the view ---

  void SetOnApplied(OnApplied on_applied) { on_applied_ = std::move(on_applied); }
  // What a journal had left. Before anything else. Numbers that home may have heard of are not given again, also where
  // the journal has lost its end (a machine that went down).
  void Restore(std::map<uint64_t, LiveOperation> operations, uint64_t acknowledged, uint64_t next);
  // Gives the operation its number and queues it. Returned: the number. The journal has it before Next may: between
  // Add and Release nothing new is sent. REQUIRES: one thread at a time (the tree's lock).
  uint64_t Add(LiveOperation operation);
  void Release(uint64_t upto);  // the journal has all operations up to this one
  // This operation and those after it are not sent until Unhold, which does nothing where it is not held. For the last
  // one that was added, before it is released.
  void Hold(uint64_t number);
  void Unhold(uint64_t number);
  // A file that is gone again: if home has heard nothing of it, all that was to be told is taken back and returned (to
  // be kept until the journal knows). Empty: it has, or more than its content hangs on it. Home hears of their numbers
  // as of operations that did nothing.
  std::vector<LiveOperation> TakeBack(uint64_t node);
  // What was not acknowledged, in order, for a checkpoint.
  void ForEach(const std::function<void(const LiveOperation&)>& visit) const;
  uint64_t acknowledged() const;
  uint64_t last() const;
  // Whether writers have to wait; then `go` runs once there is room.
  bool MustWait(std::function<void()> go);
  bool HasRoom() const;

 private:
  struct Item {
    LiveOperation operation;
    uint64_t bytes = 0;
    bool sent = false;  // at least begun
  };
  // Of the operation that is being sent.
  struct Cursor {
    uint64_t number = 0;  // 0: none
    uint64_t place = 0;
    size_t range = 0;
    uint64_t done = 0;  // of the range
  };
  void NoteLocked(const LiveOperation& op);
  void NoteOverLocked(const LiveOperation& op);
  const Item* NextItemLocked();
  std::optional<v1::WriteBack> NextGapLocked();
  void RewindLocked(uint64_t after);
  std::vector<std::function<void()>> TakeServedLocked();
  void AskForWhole(uint64_t number);
  void Ready() const {
    if (ready_) ready_();
  }

  const LiveStreamOptions options_;
  OnApplied on_applied_;
  std::function<void()> ready_;

  mutable std::mutex mutex_;
  std::map<uint64_t, Item> items_;  // by number
  uint64_t next_number_ = 1;
  uint64_t released_ = 0;  // may be sent up to here
  std::set<uint64_t> held_;
  uint64_t acknowledged_ = 0;
  uint64_t sent_ = 0;   // the last operation that was begun
  uint64_t epoch_ = 0;  // of Resume
  Cursor cursor_;
  uint64_t flying_bytes_ = 0;
  size_t flying_ = 0;
  uint64_t bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t dropped_ = 0;
  std::unordered_map<uint64_t, std::vector<uint64_t>> of_node_;  // those not acknowledged in which it is
  std::multimap<uint64_t, std::function<void()>> waiting_;       // for an acknowledgement
  std::deque<std::function<void()>> blocked_;                    // for room
};

}  // namespace vrun::vfs
