// SPDX-License-Identifier: Apache-2.0
// The numbered bytes of a stream (proto/task.proto): what the sender keeps until it is acknowledged, what the receiver
// keeps until it is passed on. No descriptors, no clock: the pumps around them do the I/O. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::node {

// Bytes of one stream that may be on their way, unacknowledged. A full window stops the reader of the source.
inline constexpr uint64_t kStreamWindow = 4u << 20;
// A message carries at most this much: large enough that its framing costs nothing, small enough to interleave.
inline constexpr size_t kStreamMessage = 256u << 10;

// Sender's side: appended at the end, sent from a position that a reconnection may set back, forgotten when
// acknowledged.
//
//   acknowledged() ≤ sent() ≤ end();  end() − acknowledged() ≤ kStreamWindow unless unbounded
class OutputWindow {
 public:
  OutputWindow() = default;

  // Where the next bytes may be put; empty when the window is full.
  struct Space {
    char* data;
    size_t size;
  };
  Space Reserve();
  // The first n bytes of the last Reserve have been filled.
  void Commit(size_t n);
  void Append(std::string_view data);  // REQUIRES: data fits, or unbounded
  // No more bytes will come.
  void SetEnd() { ended_ = true; }
  bool ended() const { return ended_; }
  // The source is dead and what it has left is small: it need not wait for acknowledgements any more.
  void SetUnbounded() { unbounded_ = true; }

  // Every byte below `offset` was passed on. kInvalid when there is no such byte yet.
  Status Acknowledge(uint64_t offset);
  // A new receiver wants the bytes from `offset` on. Acknowledged bytes are gone: then it gets those after them.
  Status SendFrom(uint64_t offset);

  struct Piece {
    uint64_t offset;
    std::string_view data;  // valid until the next call that changes the window
    bool end;               // the stream is over after this piece; sent once a SendFrom
  };
  // The next piece to be sent, at most kStreamMessage bytes; nullopt when there is none. Counts as sent.
  std::optional<Piece> Next();

  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t sent() const { return sent_; }
  uint64_t end() const { return end_; }
  bool full() const { return !unbounded_ && end_ - acknowledged_ >= kStreamWindow; }
  bool end_sent() const { return end_sent_; }

 private:
  static constexpr size_t kBlock = kStreamMessage;
  uint64_t BlockStart() const { return acknowledged_ / kBlock * kBlock; }  // offset of the first byte of blocks_[0]

  std::deque<std::unique_ptr<char[]>> blocks_;  // each kBlock long; block i holds the offsets [i, i + 1) · kBlock
  std::unique_ptr<char[]> spare_;               // the last one given up: its pages are warm
  uint64_t acknowledged_ = 0, sent_ = 0, end_ = 0;
  bool ended_ = false, end_sent_ = false, unbounded_ = false;
};

// Receiver's side: messages in, bytes out in order. Bytes that were received before are dropped, a gap is an error.
class InputWindow {
 public:
  // kInvalid: a gap, or more than the window allows.
  Status Receive(uint64_t offset, std::string data, bool end);
  // What is to be passed on next; returns the number of vectors.
  int Pending(iovec* vectors, int count) const;
  void Passed(size_t n);
  // Nobody reads any more: what waits and what comes is dropped.
  void Discard();

  uint64_t received() const { return received_; }
  uint64_t passed() const { return passed_; }
  bool empty() const { return pending_.empty(); }
  bool ended() const { return ended_; }  // the sender's end was received
  bool discarded() const { return discarded_; }

 private:
  std::deque<std::string> pending_;
  size_t first_used_ = 0;  // of pending_[0]
  uint64_t received_ = 0, passed_ = 0;
  bool ended_ = false, discarded_ = false;
};

}  // namespace vrun::node
