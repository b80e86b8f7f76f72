// SPDX-License-Identifier: Apache-2.0
// Whether content is worth compressing for one node, and how hard: by how fast its link turns out to be, how fast this
// machine compresses, and what the content gives. No clock, no I/O: the caller brings both.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

namespace vrun::home {

// Of one stream. Any thread.
//
// Sending one byte of content costs 1/link uncompressed and, as compressing and sending overlap, the larger of
// 1/speed and ratio/link compressed; the level with the smallest cost is taken. So compression ends where the link
// takes more than a core compresses (about 3 Gbit/s at level 1), and a level above 1 is for links that are slower than
// it by far. The link's speed is known only while something is queued for it; while nothing is, although requests wait
// and more has gone than a socket holds, it is faster than what we make.
class CompressionPolicy {
 public:
  // Of zstd; 0: as it is.
  int level() const;

  // Before each message that is queued: the time, what is queued still of all that was sent before, and whether more is
  // being worked on.
  void Sent(int64_t now_micros, uint64_t sent_bytes, uint64_t queued_bytes, bool more_waits);
  // What compressing `raw` bytes at `level` made of them, and took.
  void Compressed(int level, uint64_t raw, uint64_t packed, int64_t micros);

  // Bytes a second; 0: not known yet.
  double link() const;

  // The choice itself. `speed` in bytes a second, `ratio` packed to raw, of levels 1 and 3.
  struct Cost {
    double speed = 0;
    double ratio = 1;
  };
  static int Choose(double link, const Cost& one, const Cost& three, int before);

 private:
  static constexpr int64_t kWindowMicros = 20'000;
  static constexpr uint64_t kBacklogBytes = 256 * 1024;  // less than this may be in one write to the socket
  // What a socket takes without the link (Linux: 4 MiB), some times over: less says nothing of the link's speed.
  static constexpr uint64_t kTellingBytes = 16 << 20;

  mutable std::mutex mutex_;
  double link_ = 0;
  // What is typical until it has been measured.
  Cost one_{400e6, 0.5}, three_{150e6, 0.45};
  int level_ = 1;
  int64_t last_ = 0;
  uint64_t last_sent_ = 0, last_queued_ = 0;
  bool last_waited_ = false;
  int64_t busy_micros_ = 0, starved_micros_ = 0;
  uint64_t busy_bytes_ = 0, starved_bytes_ = 0;
};

// Which units of one file are tried at all: after one that did not shrink, a growing number is sent as it is, then
// one is tried again. So a file that is compressed already costs a try in sixty-four units, and one with a header that
// is not is not taken for text.
class Shrinks {
 public:
  static constexpr uint32_t kMostSkipped = 64;
  bool Try();
  void Tried(bool smaller);

 private:
  uint32_t failures_ = 0, skip_ = 0;
};

}  // namespace vrun::home
