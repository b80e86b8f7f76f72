// SPDX-License-Identifier: Apache-2.0
#include "cli/usage/usage_time.h"

#include <string>

#include "base/escape.h"
#include "base/time/calendar.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

constexpr int64_t kSecond = 1'000'000;

Error Unknown(std::string_view text) {
  return Error(Code::kInvalid, Escape(text) +
                                   ": not a time: write 2026-11-28, 2026-11-28T18:30, 2026-11, today, yesterday, "
                                   "month, now or -7d (all UTC)");
}

// "18:30", "18:30:05"; microseconds of the day.
Result<int64_t> TimeOfDay(std::string_view text, std::string_view whole) {
  int64_t parts[3] = {0, 0, 0};
  size_t count = 0;
  for (;;) {
    const size_t colon = std::min(text.find(':'), text.size());
    const auto number = ParseNumber(text.substr(0, colon), count == 0 ? 23 : 59);
    if (!number || colon != 2 || count == 3) return Unknown(whole);
    parts[count++] = static_cast<int64_t>(*number);
    if (colon == text.size()) break;
    text.remove_prefix(colon + 1);
  }
  if (count < 2) return Unknown(whole);
  return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * kSecond;
}

}  // namespace

Result<int64_t> ParseUsageTime(std::string_view text, int64_t now) {
  if (text == "now") return now;
  if (text == "today") return DayOf(now);
  if (text == "yesterday") return DayOf(now) - kDayMicros;
  if (text == "month") return MonthOf(now);
  if (text.size() > 2 && text[0] == '-') {
    const char unit = text.back();
    const auto number = ParseNumber(text.substr(1, text.size() - 2), 100'000);
    const int64_t seconds = unit == 'd' ? 86'400 : unit == 'h' ? 3600 : unit == 'm' ? 60 : 0;
    if (!number || seconds == 0) return Unknown(text);
    return now - static_cast<int64_t>(*number) * seconds * kSecond;
  }
  if (text.size() == 7) {
    const auto month = ParseDay(std::string(text) + "-01");
    return month ? Result<int64_t>(*month) : Unknown(text);
  }
  const auto day = ParseDay(text.substr(0, 10));
  if (!day) return Unknown(text);
  if (text.size() == 10) return *day;
  std::string_view time = text.substr(10);
  if (time.back() == 'Z') time.remove_suffix(1);
  if (time.empty() || time[0] != 'T') return Unknown(text);
  VRUN_ASSIGN(const int64_t of_day, TimeOfDay(time.substr(1), text));
  return *day + of_day;
}

Result<UsageSpan> ParseMonth(std::string_view text, int64_t now) {
  int64_t begin = MonthOf(now);
  if (text == "last-month") {
    begin = MonthOf(begin - 1);
  } else if (text != "month") {
    const auto day = text.size() == 7 ? ParseDay(std::string(text) + "-01") : std::nullopt;
    if (!day) return Error(Code::kInvalid, Escape(text) + ": not a month: write 2026-11, month or last-month");
    begin = *day;
  }
  return UsageSpan{begin, NextMonth(begin)};
}

}  // namespace vrun::cli
