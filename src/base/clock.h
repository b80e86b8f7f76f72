// SPDX-License-Identifier: Apache-2.0
// The project's two kinds of time: monotonic for leases and timeouts, wall clock for people.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>

namespace vrun {

// CLOCK_BOOTTIME in microseconds: never steps, counts suspend.
int64_t MonotonicMicros();
// Microseconds since 1970-01-01 UTC.
int64_t WallMicros();
// Combines a file's time; values before 1677 or after 2262 are clamped.
int64_t ToNanos(int64_t seconds, int64_t nanoseconds);
inline int64_t ToNanos(const timespec& time) { return ToNanos(time.tv_sec, time.tv_nsec); }
// "2026-11-20T23:59:01Z".
std::string FormatRfc3339(int64_t wall_micros);

// The clock of a component that waits or timestamps; a test can replace it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t Monotonic() const { return MonotonicMicros(); }
  virtual int64_t Wall() const { return WallMicros(); }
};

}  // namespace vrun
