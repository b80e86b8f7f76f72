// SPDX-License-Identifier: Apache-2.0
#include "cli/array/array_options.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

using Range = v1::Array::Range;

constexpr size_t kMostRangeNumber = 18;  // digits

Error BadIndexes(std::string_view text) {
  return Error(Code::kInvalid, Escape(text) + ": not indexes: write them as in 0-15, 1,3,5 or 0-100:10");
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == text.npos) return out;
    text.remove_prefix(at + 1);
  }
}

// "3", "3-9" or "3-9:2".
Result<Range> ParseRange(std::string_view item, std::string_view whole) {
  const auto number = [&](std::string_view digits) -> Result<uint32_t> {
    if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) return BadIndexes(whole);
    auto n = ParseNumber(digits, kMaxIndex);
    if (!n) {
      return Error(Code::kInvalid, Escape(whole) + ": the highest index is " + std::to_string(kMaxIndex) +
                                       ": number the elements from 0");
    }
    return static_cast<uint32_t>(*n);
  };
  Range range;
  range.set_step(1);
  const size_t dash = item.find('-');
  VRUN_ASSIGN(const uint32_t first, number(item.substr(0, dash)));
  range.set_first(first);
  range.set_last(first);
  if (dash == item.npos) return range;
  const std::string_view rest = item.substr(dash + 1);
  const size_t colon = rest.find(':');
  VRUN_ASSIGN(const uint32_t last, number(rest.substr(0, colon)));
  if (last < first) {
    return Error(Code::kInvalid, Escape(whole) + ": the second index is the larger one: write " + std::to_string(last) +
                                     "-" + std::to_string(first));
  }
  range.set_last(last);
  if (colon == rest.npos) return range;
  VRUN_ASSIGN(const uint32_t step, number(rest.substr(colon + 1)));
  if (step == 0) return Error(Code::kInvalid, Escape(whole) + ": a step of 0: write 1 or more");
  range.set_step(step);
  // The last index that there is.
  range.set_last(first + (last - first) / step * step);
  return range;
}

// A string of the schema must be UTF-8, and a value is shown in one line.
Status AddValue(std::string value, v1::Array::Sweep* out) {
  std::string without_backslashes = value;
  std::erase(without_backslashes, '\\');
  if (Escape(without_backslashes) != without_backslashes) {
    return Error(Code::kInvalid,
                 Escape(value) + ": not a value: control characters and what is not UTF-8 cannot be in it");
  }
  out->add_values(std::move(value));
  return {};
}

// nullopt: not written as a whole number.
std::optional<int64_t> WholeNumber(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > kMostRangeNumber || digits.find_first_not_of("0123456789") != digits.npos) {
    return std::nullopt;
  }
  int64_t out = 0;
  for (const char c : digits) out = out * 10 + (c - '0');
  return negative ? -out : out;
}

bool IsNumber(std::string_view text) {
  const std::string copy(text);
  char* end;
  (void)std::strtod(copy.c_str(), &end);
  return !copy.empty() && *end == '\0';
}

// False: not written as a range.
Result<bool> AddRange(std::string_view text, v1::Array::Sweep* out) {
  const std::vector<std::string_view> parts = Split(text, ':');
  if (parts.size() < 2 || parts.size() > 3 || !std::all_of(parts.begin(), parts.end(), IsNumber)) return false;
  std::vector<int64_t> numbers;
  for (const std::string_view part : parts) {
    const auto number = WholeNumber(part);
    if (!number) {
      return Error(Code::kInvalid, Escape(text) + ": a range counts in whole numbers: list the values, as in 0.1,0.2");
    }
    numbers.push_back(*number);
  }
  const int64_t step = numbers.size() == 3 ? numbers[2] : 1;
  if (step == 0) return Error(Code::kInvalid, Escape(text) + ": a step of 0: write 1 or more");
  const uint64_t distance =
      step > 0 ? static_cast<uint64_t>(numbers[1] - numbers[0]) : static_cast<uint64_t>(numbers[0] - numbers[1]);
  const bool none = step > 0 ? numbers[0] >= numbers[1] : numbers[0] <= numbers[1];
  if (none) return Error(Code::kInvalid, Escape(text) + ": no value is between these: the second number is not one");
  if ((distance - 1) / static_cast<uint64_t>(std::abs(step)) >= kMaxElements) {
    return Error(Code::kInvalid,
                 Escape(text) + ": more than " + std::to_string(kMaxElements) + " values: sweep fewer at a time");
  }
  for (int64_t at = numbers[0]; step > 0 ? at < numbers[1] : at > numbers[1]; at += step) {
    out->add_values(std::to_string(at));
  }
  return true;
}

}  // namespace

Result<ElementRanges> ParseIndexes(std::string_view text) {
  ElementRanges ranges;
  for (const std::string_view item : Split(text, ',')) {
    VRUN_ASSIGN(*ranges.Add(), ParseRange(item, text));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first() < b.first(); });
  const bool apart = std::adjacent_find(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
                       return b.first() <= a.last();
                     }) == ranges.end();
  // What is too much is refused by whoever uses the indexes.
  if (apart || ElementCount(ranges) > kMaxElements) return ranges;
  std::set<uint32_t> indexes;
  for (const Range& range : ranges) {
    for (uint64_t at = range.first(); at <= range.last(); at += range.step()) {
      indexes.insert(static_cast<uint32_t>(at));
    }
  }
  return RangesOf(std::vector<uint32_t>(indexes.begin(), indexes.end()));
}

Status ParseArray(std::string_view text, v1::Array* out) {
  const size_t percent = text.find('%');
  const std::string_view indexes = text.substr(0, percent);
  out->clear_ranges();
  out->clear_most_running();
  if (percent != text.npos) {
    auto most = ParseNumber(text.substr(percent + 1), kMaxElements);
    if (!most || *most == 0) {
      return Error(Code::kInvalid,
                   Escape(text) + ": behind the % is how many run at the same time: write 1 or more, as in 0-15%4");
    }
    out->set_most_running(static_cast<uint32_t>(*most));
    if (indexes.empty()) return {};
  }
  VRUN_ASSIGN(*out->mutable_ranges(), ParseIndexes(indexes));
  return {};
}

Result<v1::Array::Sweep> ParseSweep(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) {
    return Error(Code::kInvalid, Escape(text) + ": not a sweep: write NAME=VALUE,VALUE or NAME=FIRST:END");
  }
  v1::Array::Sweep out;
  out.set_name(Escape(text.substr(0, equals)));
  const std::string_view values = text.substr(equals + 1);
  if (values.empty()) {
    return Error(Code::kInvalid, Escape(text) + ": no values: write NAME=VALUE,VALUE or NAME=FIRST:END");
  }
  VRUN_ASSIGN(const bool range, AddRange(values, &out));
  if (range) return out;
  std::string value;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == '\\' && i + 1 < values.size() && (values[i + 1] == ',' || values[i + 1] == '\\')) {
      value.push_back(values[++i]);
    } else if (values[i] == ',') {
      VRUN_TRY(AddValue(std::exchange(value, ""), &out));
    } else {
      value.push_back(values[i]);
    }
  }
  VRUN_TRY(AddValue(std::move(value), &out));
  return out;
}

}  // namespace vrun::cli
