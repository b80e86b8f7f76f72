// SPDX-License-Identifier: Apache-2.0
// State shared by an attached run's client and its home daemon: a memfd that the client creates and passes with `Run`
// and every `Resume`, so that a new home daemon continues exactly where the old one stopped.
//
// The client creates it (CreateStreamProgress), sealed against shrinking, so that no process that maps it gets SIGBUS.
// Home writes the offsets, in this order: first the bytes, then the offset. A home that dies in between repeats at most
// the bytes of one write. All fields are zero in a new run.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

// What the terminal's last line shows (StreamProgress::line).
enum class ProgressLine : uint32_t {
  kNone = 0,
  kDrawn = 1,   // the client has drawn its progress line and the cursor is behind it
  kOutput = 2,  // output of the command has begun: no more progress lines
};

struct StreamProgress {
  static constexpr uint64_t kMagic = 0x7672756e70726731;  // "vrunprg1"
  static constexpr uint32_t kVersion = 1;
  // Bytes of stdin that home has read from the client's descriptor and the task's supervisor has not acknowledged: byte
  // n of the stream is at stdin_window[n % kStdinWindow]. Needed because a pipe cannot be read twice.
  static constexpr uint64_t kStdinWindow = 1u << 20;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  // Before its first byte to stdout or stderr, home does line.exchange(kOutput). If that returns kDrawn, home first
  // writes "\r\x1b[K" to stderr.
  std::atomic<ProgressLine> line{ProgressLine::kNone};
  std::atomic<uint64_t> stdin_read{0};      // bytes read from the descriptor
  std::atomic<uint64_t> stdin_acked{0};     // bytes acknowledged by the supervisor
  std::atomic<uint64_t> stdout_written{0};  // bytes written to the descriptor
  std::atomic<uint64_t> stderr_written{0};
  std::atomic<uint32_t> stdin_eof{0};  // 1: the end of stdin was read
  // The last bytes below stdin_read that are still in the client's pipe: home has copied but not consumed them.
  std::atomic<uint32_t> stdin_peeked{0};
  alignas(4096) unsigned char stdin_window[kStdinWindow];  // uses memory only once touched
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

// A mapping of the memfd; unmapped when destroyed.
class StreamProgressMap {
 public:
  // kCorrupt: not such a memfd, or another version. The descriptor may be closed afterwards.
  static Result<StreamProgressMap> Map(int fd);

  StreamProgressMap(StreamProgressMap&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  StreamProgressMap& operator=(StreamProgressMap&& other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }
  ~StreamProgressMap();

  StreamProgress* operator->() const { return at_; }
  StreamProgress& operator*() const { return *at_; }

 private:
  explicit StreamProgressMap(StreamProgress* at) : at_(at) {}
  StreamProgress* at_;
};

// Creates a new one, all zero.
Result<UniqueFd> CreateStreamProgress();

}  // namespace vrun
