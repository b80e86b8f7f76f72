// SPDX-License-Identifier: Apache-2.0
// Moments and other jobs on the command line, in the forms that Slurm's users know.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::cli {

// Wall clock, microseconds, of "now", "now+90minutes" (seconds, minutes, hours, days, weeks, or s, m, h, d, w; without
// a unit seconds), "18:30[:00]" (the next time that it is so late), "today", "tomorrow", "noon", "midnight",
// "2026-11-21[T18:30[:00]]", in the local time zone or, with a Z behind it, in UTC. `now` is the same clock's. kInvalid
// with what to write.
Result<int64_t> ParseMoment(std::string_view text, int64_t now);

struct Deadline {
  int64_t at = 0;     // as ParseMoment
  bool hard = false;  // it is to be said whether it can be met, and kept if so
};
// "[hard:]TIME"
Result<Deadline> ParseDeadline(std::string_view text, int64_t now);

struct Dependencies {
  std::vector<uint64_t> after;     // whatever becomes of them
  std::vector<uint64_t> after_ok;  // if they succeed
};
// "afterok:12:13,afterany:14"
Result<Dependencies> ParseDependencies(std::string_view text);

}  // namespace vrun::cli
