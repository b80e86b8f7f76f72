// SPDX-License-Identifier: Apache-2.0
// The numbered bytes of a stream (proto/task.proto): the sender keeps them until acknowledged, the receiver until
// passed on. Uses no descriptors and no clock; the pumps around them do the I/O. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::node {

// The maximum of unacknowledged bytes of one stream. A full window stops reading from the source.
inline constexpr uint64_t kStreamWindow = 4u << 20;
// The maximum size of a message: large enough that framing costs nothing, small enough to interleave.
inline constexpr size_t kStreamMessage = 256u << 10;

// Frees a block of the heap, or one that is mapped from a spool.
struct FreeBlock {
  bool mapped = false;
  void operator()(char* block) const;
};

// The sender's side. Bytes are appended at the end, sent from a position that a reconnection may set back, and freed
// when acknowledged.
//
//   acknowledged() ≤ sent() ≤ end();  end() − acknowledged() ≤ kStreamWindow unless unbounded
class OutputWindow {
 public:
  OutputWindow() = default;

  // Where to put the next bytes; empty when the window is full.
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
  // Of many streams of one task, each keeps less. Before the first byte.
  void SetLimit(uint64_t bytes) { limit_ = bytes; }
  // Keeps up to `bytes` in this empty file, so that the source goes on without a receiver. What is sent and not
  // acknowledged stays within the limit. Before the first byte.
  void SpoolTo(UniqueFd file, uint64_t bytes);
  // The source is dead and its remaining data is small, so it need not wait for acknowledgements.
  void SetUnbounded() { unbounded_ = true; }

  // All bytes below `offset` were passed on. kInvalid when `offset` is beyond the end of the data.
  Status Acknowledge(uint64_t offset);
  // A new receiver wants the bytes from `offset` on. If some are already freed, it gets those after them.
  Status SendFrom(uint64_t offset);

  struct Piece {
    uint64_t offset;
    std::string_view data;  // valid until the next call that changes the window
    bool end;               // the stream ends after this piece; sent once per SendFrom
  };
  // The next piece to send, at most kStreamMessage bytes; nullopt when there is none. Counts as sent.
  std::optional<Piece> Next();

  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t sent() const { return sent_; }
  uint64_t end() const { return end_; }
  bool full() const { return !unbounded_ && (no_space_ || end_ - acknowledged_ >= capacity()); }
  bool end_sent() const { return end_sent_; }

 private:
  static constexpr size_t kBlock = kStreamMessage;
  uint64_t BlockStart() const { return acknowledged_ / kBlock * kBlock; }  // offset of the first byte of blocks_[0]

  uint64_t capacity() const { return spool_ ? spool_bytes_ : limit_; }

  using Block = std::unique_ptr<char[], FreeBlock>;
  Block NewBlock(uint64_t offset);

  std::deque<Block> blocks_;  // each kBlock long; block i holds the offsets [i, i + 1) · kBlock
  Block spare_;               // the last freed block of the heap, reused because its pages are warm
  uint64_t limit_ = kStreamWindow;
  UniqueFd spool_;
  uint64_t spool_bytes_ = 0;
  bool no_space_ = false;  // the spool's disk is full; until something is acknowledged
  uint64_t acknowledged_ = 0, sent_ = 0, end_ = 0;
  bool ended_ = false, end_sent_ = false, unbounded_ = false;
};

// The receiver's side: messages in, bytes out in order. Bytes received before are dropped; a gap is an error.
class InputWindow {
 public:
  // kInvalid: a gap, or beyond the window.
  Status Receive(uint64_t offset, std::string data, bool end);
  // Fills in the next bytes to pass on; returns the number of vectors.
  int Pending(iovec* vectors, int count) const;
  void Passed(size_t n);
  // The reader is gone: drops pending and future bytes.
  void Discard();

  uint64_t received() const { return received_; }
  uint64_t passed() const { return passed_; }
  bool empty() const { return pending_.empty(); }
  bool ended() const { return ended_; }  // the sender's end marker was received
  bool discarded() const { return discarded_; }

 private:
  std::deque<std::string> pending_;
  size_t first_used_ = 0;  // consumed bytes of pending_[0]
  uint64_t received_ = 0, passed_ = 0;
  bool ended_ = false, discarded_ = false;
};

}  // namespace vrun::node
