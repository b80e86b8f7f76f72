// SPDX-License-Identifier: Apache-2.0
// Days and months of UTC. Times are microseconds since 1970. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vrun {

constexpr int64_t kDayMicros = int64_t{24} * 3600 * 1'000'000;

int64_t DayOf(int64_t at);                               // its beginning
int64_t MonthOf(int64_t at);                             // its beginning
int64_t NextMonth(int64_t at);                           // the beginning of the month after that of `at`
std::string DayText(int64_t at);                         // "2026-11-28"
std::string MonthText(int64_t at);                       // "November 2026"
std::optional<int64_t> ParseDay(std::string_view text);  // "2026-11-28"

}  // namespace vrun
