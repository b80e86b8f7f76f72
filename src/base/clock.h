// SPDX-License-Identifier: Apache-2.0
// Time in the two kinds that the project knows: monotonic for leases and time-outs, wall clock for people.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>

namespace vrun {

// CLOCK_BOOTTIME in microseconds: never steps, counts suspend.
int64_t MonotonicMicros();
// Microseconds since 1970-01-01 UTC.
int64_t WallMicros();
// Of a file's time; what is before 1677 or after 2262 is the first or last that there is room for.
int64_t ToNanos(int64_t seconds, int64_t nanoseconds);
inline int64_t ToNanos(const timespec& time) { return ToNanos(time.tv_sec, time.tv_nsec); }
// "2026-11-20T23:59:01Z".
std::string FormatRfc3339(int64_t wall_micros);

// What a component that waits or stamps is given, so that a test can hold the time in its hand.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t Monotonic() const { return MonotonicMicros(); }
  virtual int64_t Wall() const { return WallMicros(); }
};

}  // namespace vrun
