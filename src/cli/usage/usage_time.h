// SPDX-License-Identifier: Apache-2.0
// Times of `vctl usage`. All are UTC, as the days and months of the accounting are.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace vrun::cli {

// Accepts "now", "today", "yesterday", "month" (its beginning), "-7d", "-12h", "-30m" (before now), "2026-11",
// "2026-11-28", "2026-11-28T18:30[:00][Z]". `now` and the result: wall clock in microseconds. kInvalid says what to
// write.
Result<int64_t> ParseUsageTime(std::string_view text, int64_t now);

struct UsageSpan {
  int64_t from = 0;
  int64_t to = 0;
};
// "2026-11", "month", "last-month": from its beginning until its end.
Result<UsageSpan> ParseMonth(std::string_view text, int64_t now);

}  // namespace vrun::cli
