// SPDX-License-Identifier: Apache-2.0
#include "base/time/calendar.h"

#include <chrono>
#include <cstdio>

namespace vrun {
namespace {

using std::chrono::microseconds;
using std::chrono::sys_days;
using std::chrono::year_month_day;

sys_days Day(int64_t at) {
  return std::chrono::floor<std::chrono::days>(std::chrono::sys_time<microseconds>(microseconds(at)));
}

int64_t MicrosOf(sys_days day) { return std::chrono::duration_cast<microseconds>(day.time_since_epoch()).count(); }

}  // namespace

int64_t DayOf(int64_t at) { return MicrosOf(Day(at)); }

int64_t MonthOf(int64_t at) {
  const year_month_day day(Day(at));
  return MicrosOf(sys_days(day.year() / day.month() / 1));
}

int64_t NextMonth(int64_t at) {
  const year_month_day day(Day(at));
  return MicrosOf(sys_days((day.year() / day.month() + std::chrono::months(1)) / 1));
}

std::string DayText(int64_t at) {
  const year_month_day day(Day(at));
  char text[32];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(day.year()), static_cast<unsigned>(day.month()),
                static_cast<unsigned>(day.day()));
  return text;
}

std::string MonthText(int64_t at) {
  static constexpr const char* kNames[] = {"January", "February", "March",     "April",   "May",      "June",
                                           "July",    "August",   "September", "October", "November", "December"};
  const year_month_day day(Day(at));
  return std::string(kNames[static_cast<unsigned>(day.month()) - 1]) + " " +
         std::to_string(static_cast<int>(day.year()));
}

std::optional<int64_t> ParseDay(std::string_view text) {
  int parts[3] = {0, 0, 0};
  constexpr size_t kLengths[] = {4, 2, 2};
  for (size_t part = 0, at = 0; part < 3; ++part) {
    if (part > 0 && (at >= text.size() || text[at++] != '-')) return std::nullopt;
    for (size_t i = 0; i < kLengths[part]; ++i, ++at) {
      if (at >= text.size() || text[at] < '0' || text[at] > '9') return std::nullopt;
      parts[part] = parts[part] * 10 + (text[at] - '0');
    }
    if (part == 2 && at != text.size()) return std::nullopt;
  }
  const year_month_day day = std::chrono::year(parts[0]) / parts[1] / parts[2];
  if (!day.ok() || parts[0] < 1970) return std::nullopt;
  return MicrosOf(sys_days(day));
}

}  // namespace vrun
