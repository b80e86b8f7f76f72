// SPDX-License-Identifier: Apache-2.0
// Times and job dependencies on the command line, in Slurm's forms.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::cli {

// Wall clock in microseconds. Accepts "now", "now+90minutes" (seconds, minutes, hours, days, weeks, or s, m, h, d, w;
// the default is seconds), "18:30[:00]" (the next such time), "today", "tomorrow", "noon", "midnight",
// "2026-11-21[T18:30[:00]]". Times are in the local time zone, or in UTC with a Z at the end. `now` is on the same
// clock. kInvalid says what to write.
Result<int64_t> ParseMoment(std::string_view text, int64_t now);

struct Deadline {
  int64_t at = 0;     // as ParseMoment
  bool hard = false;  // home must answer whether it can be met, and a yes is a promise
};
// "[hard:]TIME"
Result<Deadline> ParseDeadline(std::string_view text, int64_t now);

// Other jobs that come first, as in v1::Scheduling.
struct Dependencies {
  std::vector<uint64_t> after_any;
  std::vector<uint64_t> after_ok;
  std::vector<uint64_t> after_not_ok;
  std::vector<uint64_t> after_start;
  std::vector<uint64_t> after_corresponding;
  bool singleton = false;
};
// Slurm's "afterok:12:13,afterany:14,singleton". Also after, afternotok and aftercorr. All must be fulfilled.
Result<Dependencies> ParseDependencies(std::string_view text);

}  // namespace vrun::cli
