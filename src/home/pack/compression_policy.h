// SPDX-License-Identifier: Apache-2.0
// Decides whether content for one node is compressed, and at which level: from the measured speed of its link, the
// compression speed of this machine, and the compression ratio. No clock, no I/O: the caller provides both.
#pragma once

#include <array>
#include <cstdint>

#include "base/thread/mutex.h"

namespace vrun::home {

// Of one stream. Any thread.
//
// The cost of sending one byte is 1/link uncompressed. Compression and sending overlap, so compressed it is the larger
// of 1/speed and ratio/link. The level with the smallest cost wins. So compression stops where the link is faster than
// a core compresses (about 3 Gbit/s at level 1), and a level above 1 is for much slower links. The link's speed can be
// measured only while data is queued for it. If nothing is queued although requests wait and more was sent than a
// socket holds, the link is faster than we produce.
class CompressionPolicy {
 public:
  // zstd level; 0: uncompressed.
  int level() const;

  // Call before each message is queued. `queued_bytes`: still queued of everything sent before; `more_waits`: more is
  // being produced.
  void Sent(int64_t now_micros, uint64_t sent_bytes, uint64_t queued_bytes, bool more_waits);
  // The result of compressing `raw` bytes at `level`: size and time.
  void Compressed(int level, uint64_t raw, uint64_t packed, int64_t micros);

  // Bytes a second; 0: not known yet.
  double link() const;

  // The choice itself. `speed` in bytes a second, `ratio` = packed / raw, for levels 1 and 3.
  struct Cost {
    double speed = 0;
    double ratio = 1;
  };
  static int Choose(double link, const Cost& one, const Cost& three, int before);

 private:
  static constexpr int64_t kWindowMicros = 20'000;
  static constexpr uint64_t kBacklogBytes = 256 * 1024;  // less than this may be a single write to the socket
  // Several times what a socket buffers (Linux: 4 MiB): less says nothing about the link's speed.
  static constexpr uint64_t kTellingBytes = 16 << 20;

  mutable Mutex mutex_;
  double link_ VRUN_GUARDED_BY(mutex_) = 0;
  // Typical values until measured.
  Cost one_ VRUN_GUARDED_BY(mutex_){400e6, 0.5}, three_{150e6, 0.45};
  int level_ VRUN_GUARDED_BY(mutex_) = 1;
  int64_t last_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t last_sent_ VRUN_GUARDED_BY(mutex_) = 0, last_queued_ VRUN_GUARDED_BY(mutex_) = 0;
  bool last_waited_ VRUN_GUARDED_BY(mutex_) = false;
  int64_t busy_micros_ VRUN_GUARDED_BY(mutex_) = 0, starved_micros_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t busy_bytes_ VRUN_GUARDED_BY(mutex_) = 0, starved_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
};

// Decides which units of one file to try to compress. After a unit that did not shrink, a growing number is sent as it
// is before the next try. So a compressed file costs one try in sixty-four units, and an incompressible header does not
// mark the whole file as incompressible.
class Shrinks {
 public:
  static constexpr uint32_t kMostSkipped = 64;
  bool Try();
  void Tried(bool smaller);

 private:
  uint32_t failures_ = 0, skip_ = 0;
};

}  // namespace vrun::home
