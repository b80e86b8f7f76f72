// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <cstdio>
#include <ctime>

namespace vrun {
namespace {

int64_t Micros(clockid_t clock) {
  timespec ts;
  clock_gettime(clock, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1000000 + ts.tv_nsec / 1000;
}

}  // namespace

int64_t MonotonicMicros() { return Micros(CLOCK_BOOTTIME); }
int64_t WallMicros() { return Micros(CLOCK_REALTIME); }

int64_t ToNanos(int64_t seconds, int64_t nanoseconds) {
  int64_t all = 0;
  if (__builtin_mul_overflow(seconds, int64_t{1'000'000'000}, &all) || __builtin_add_overflow(all, nanoseconds, &all)) {
    return seconds < 0 ? INT64_MIN : INT64_MAX;
  }
  return all;
}

std::string FormatRfc3339(int64_t wall_micros) {
  time_t seconds = static_cast<time_t>(wall_micros / 1000000);
  tm parts;
  gmtime_r(&seconds, &parts);
  char buffer[40];
  size_t n = strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(buffer, n);
}

}  // namespace vrun
