// SPDX-License-Identifier: Apache-2.0
#include "cli/base/times.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include "base/escape.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kMostSeconds = 10ull * 366 * 86400;

Error Bad(std::string_view text, std::string_view why) {
  return Error(Code::kInvalid, Escape(text) + ": " + std::string(why));
}

// "a<separator>b[<separator>c]", all digits; empty if it has another form.
std::vector<uint64_t> Split(std::string_view text, char separator, uint64_t most) {
  std::vector<uint64_t> parts;
  for (;;) {
    const size_t at = text.find(separator);
    const auto n = ParseNumber(text.substr(0, at), most);
    if (!n) return {};
    parts.push_back(*n);
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool ParseClock(std::string_view text, std::tm* out) {
  const auto parts = Split(text, ':', 59);
  if (parts.size() < 2 || parts.size() > 3 || parts[0] > 23) return false;
  out->tm_hour = static_cast<int>(parts[0]);
  out->tm_min = static_cast<int>(parts[1]);
  out->tm_sec = parts.size() == 3 ? static_cast<int>(parts[2]) : 0;
  return true;
}

bool ParseDate(std::string_view text, std::tm* out) {
  const auto parts = Split(text, '-', 9999);
  if (parts.size() != 3 || parts[0] < 1970 || parts[1] < 1 || parts[1] > 12 || parts[2] < 1 || parts[2] > 31) {
    return false;
  }
  out->tm_year = static_cast<int>(parts[0]) - 1900;
  out->tm_mon = static_cast<int>(parts[1]) - 1;
  out->tm_mday = static_cast<int>(parts[2]);
  return true;
}

std::optional<uint64_t> UnitSeconds(std::string_view unit) {
  struct Unit {
    std::string_view name;
    uint64_t seconds;
  };
  static constexpr std::array<Unit, 6> kUnits{
      {{"", 1}, {"second", 1}, {"minute", 60}, {"hour", 3600}, {"day", 86400}, {"week", 7 * 86400}}};
  for (const Unit& u : kUnits) {
    if (unit == u.name || (!u.name.empty() && (unit == u.name.substr(0, 1) || unit == std::string(u.name) + "s"))) {
      return u.seconds;
    }
  }
  return std::nullopt;
}

// Parses "90minutes".
std::optional<int64_t> ParseAhead(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto n = ParseNumber(text.substr(0, digits), kMostSeconds);
  const auto unit = UnitSeconds(text.substr(digits));
  if (!n || !unit || *n > kMostSeconds / *unit) return std::nullopt;
  return static_cast<int64_t>(*n * *unit) * kSecond;
}

// A local time of day, today or `days` later, with the daylight saving of that date.
int64_t Local(std::tm day, int days) {
  day.tm_mday += days;
  day.tm_isdst = -1;
  return int64_t{std::mktime(&day)} * kSecond;
}

}  // namespace

Result<int64_t> ParseMoment(std::string_view text, int64_t now) {
  const auto bad = [&] {
    return Bad(text,
               "not a time: write now+2hours, HH:MM, tomorrow, YYYY-MM-DD or YYYY-MM-DDTHH:MM[:SS], local or with a Z");
  };
  if (text == "now") return now;
  if (text.starts_with("now+")) {
    const auto ahead = ParseAhead(text.substr(4));
    if (!ahead) return bad();
    return now + *ahead;
  }
  const std::time_t seconds = now / kSecond;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  local.tm_hour = local.tm_min = local.tm_sec = 0;
  if (text == "today") return Local(local, 0);
  if (text == "tomorrow" || text == "midnight") return Local(local, 1);
  if (text == "noon") {
    local.tm_hour = 12;
    const int64_t at = Local(local, 0);
    return at > now ? at : Local(local, 1);
  }
  if (ParseClock(text, &local)) {
    const int64_t at = Local(local, 0);
    return at > now ? at : Local(local, 1);
  }
  std::tm day{};
  std::string_view rest = text;
  const bool utc = rest.ends_with('Z');
  if (utc) rest.remove_suffix(1);
  const size_t t = rest.find('T');
  if (!ParseDate(rest.substr(0, t), &day) || (t != rest.npos && !ParseClock(rest.substr(t + 1), &day))) return bad();
  std::tm same = day;
  const int64_t at = utc ? int64_t{::timegm(&same)} * kSecond : Local(day, 0);
  const std::time_t back = at / kSecond;  // rejects a 31st in a month that has none
  std::tm check{};
  utc ? ::gmtime_r(&back, &check) : ::localtime_r(&back, &check);
  if (check.tm_mday != day.tm_mday || check.tm_mon != day.tm_mon) return bad();
  return at;
}

Result<Deadline> ParseDeadline(std::string_view text, int64_t now) {
  Deadline deadline;
  constexpr std::string_view kHard = "hard:";
  deadline.hard = text.starts_with(kHard);
  VRUN_ASSIGN(deadline.at, ParseMoment(deadline.hard ? text.substr(kHard.size()) : text, now));
  if (deadline.at <= now) return Bad(text, "is over: choose a later time");
  return deadline;
}

Result<Dependencies> ParseDependencies(std::string_view text) {
  constexpr std::string_view kForm =
      "not jobs to come after: write afterok:ID[:ID...], afterany, afternotok, after or aftercorr, or singleton, with "
      "commas between";
  Dependencies out;
  const std::pair<std::string_view, std::vector<uint64_t>*> kinds[] = {{"afterok", &out.after_ok},
                                                                       {"afterany", &out.after_any},
                                                                       {"afternotok", &out.after_not_ok},
                                                                       {"after", &out.after_start},
                                                                       {"aftercorr", &out.after_corresponding}};
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t colon = item.find(':');
    const auto kind = std::find_if(std::begin(kinds), std::end(kinds),
                                   [name = item.substr(0, colon)](const auto& k) { return k.first == name; });
    if (item == "singleton") {
      out.singleton = true;
    } else if (kind == std::end(kinds) || colon == item.npos) {
      return Bad(text, kForm);
    } else if (item.find('?') != item.npos) {
      return Bad(text, "one of several jobs cannot be waited for: write commas to wait for all");
    } else if (item.find('_') != item.npos) {
      return Bad(text,
                 "one element of an array cannot be waited for: write "
                 " the array's id, or aftercorr:ID for an array of the same indexes");
    } else if (item.find('+') != item.npos) {
      return Bad(text, "a delay after another job's start is not supported: leave out what follows the +");
    } else {
      const auto ids = Split(item.substr(colon + 1), ':', UINT64_MAX);
      kind->second->insert(kind->second->end(), ids.begin(), ids.end());
      if (ids.empty() || std::find(ids.begin(), ids.end(), 0u) != ids.end()) {
        return Bad(text, "a job id is a number from 1 on: write it as in afterok:12:13");
      }
    }
    if (comma == rest.npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace vrun::cli
