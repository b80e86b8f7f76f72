// SPDX-License-Identifier: Apache-2.0
#include "jobs/array.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "base/escape.h"

namespace vrun {
namespace {

using Range = v1::Array::Range;

uint32_t StepOf(const Range& range) { return std::max(range.step(), 1u); }
uint64_t CountOf(const Range& range) { return (range.last() - range.first()) / StepOf(range) + 1; }
uint32_t LastOf(const Range& range) {
  return range.first() + static_cast<uint32_t>(CountOf(range) - 1) * StepOf(range);
}

// kMaxElements + 1: more than allowed.
uint64_t Combinations(const v1::Array& array) {
  uint64_t product = 1;
  for (const v1::Array::Sweep& sweep : array.sweeps()) {
    product = std::min(product * static_cast<uint64_t>(sweep.values_size()), kMaxElements + 1);
  }
  return product;
}

bool StartsName(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsName(std::string_view text) {
  return !text.empty() && StartsName(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return StartsName(c) || (c >= '0' && c <= '9'); });
}

// Calls `at` with the position of the brace and the name for each {NAME} that is not ${NAME}. `at` returns where to go
// on.
void ForEachName(const std::string& text, const std::function<size_t(size_t, const std::string&)>& at) {
  for (size_t i = text.find('{'); i != std::string::npos; i = text.find('{', i)) {
    const size_t end = text.find('}', i);
    if (end == std::string::npos) return;
    const std::string name = text.substr(i + 1, end - i - 1);
    i = IsName(name) && (i == 0 || text[i - 1] != '$') ? at(i, name) : i + 1;
  }
}

// The number of the value of each sweep.
std::vector<int> ValuesAt(const v1::Array& array, uint64_t position) {
  std::vector<int> at(static_cast<size_t>(array.sweeps_size()));
  for (int i = array.sweeps_size() - 1; i >= 0; --i) {
    const auto values = static_cast<uint64_t>(array.sweeps(i).values_size());
    at[static_cast<size_t>(i)] = static_cast<int>(position % values);
    position /= values;
  }
  return at;
}

// Replaces names from `begin` on.
void Replace(const v1::Array& array, const std::vector<int>& at, std::string_view keep, std::string* text) {
  std::string out;
  size_t copied = keep.size();
  const std::string from = *text;
  ForEachName(from, [&](size_t brace, const std::string& name) {
    const size_t end = brace + name.size() + 2;
    if (brace < keep.size()) return brace + 1;
    for (int i = 0; i < array.sweeps_size(); ++i) {
      if (array.sweeps(i).name() != name) continue;
      out += from.substr(copied, brace - copied) + array.sweeps(i).values(at[static_cast<size_t>(i)]);
      copied = end;
    }
    return end;
  });
  *text = from.substr(0, keep.size()) + out + from.substr(copied);
}

Status CheckSweeps(const v1::Array& array) {
  std::set<std::string> names;
  for (const v1::Array::Sweep& sweep : array.sweeps()) {
    const std::string what = "sweep " + Escape(sweep.name()) + ": ";
    if (!IsName(sweep.name())) {
      return Error(Code::kInvalid,
                   what + "a name has letters, digits and _ and begins with no digit: write NAME=VALUES");
    }
    if (sweep.values_size() == 0) return Error(Code::kInvalid, what + "it has no values: write NAME=VALUE,VALUE");
    if (!names.insert(sweep.name()).second) {
      return Error(Code::kInvalid, what + "there are two of this name: give all values in one");
    }
  }
  return {};
}

}  // namespace

void Complete(v1::Array* array) {
  const uint64_t all = Combinations(*array);
  if (array->sweeps().empty() || !array->ranges().empty() || all == 0 || all > kMaxElements) return;
  array->add_ranges()->set_last(static_cast<uint32_t>(all - 1));
}

Status CheckRanges(const ElementRanges& ranges, const std::string& what) {
  if (ranges.size() > kMaxRanges) {
    return Error(Code::kInvalid, what + ": " + std::to_string(ranges.size()) + " ranges are given, " +
                                     std::to_string(kMaxRanges) + " are the limit: use ranges with a step");
  }
  const Range* before = nullptr;
  for (const Range& range : ranges) {
    const std::string text = std::to_string(range.first()) + "-" + std::to_string(range.last());
    if (range.first() > range.last()) return Error(Code::kInvalid, what + ": " + text + " goes down: write it upwards");
    if (range.last() > kMaxIndex) {
      return Error(Code::kInvalid, what + ": " + text + ": the highest index is " + std::to_string(kMaxIndex));
    }
    if (before != nullptr && range.first() <= before->last()) {
      return Error(Code::kInvalid, what + ": " + text + " does not come after " + std::to_string(before->first()) +
                                       "-" + std::to_string(before->last()) +
                                       ": give the indexes in order and only once");
    }
    before = &range;
  }
  return {};
}

Status CheckArray(const v1::Array& array) {
  VRUN_TRY(CheckSweeps(array));
  if (!array.sweeps().empty() && Combinations(array) > kMaxElements) {
    return Error(Code::kInvalid, "sweep: there are more than " + std::to_string(kMaxElements) +
                                     " combinations: sweep fewer values at a time");
  }
  if (array.ranges().empty()) return Error(Code::kInvalid, "array: it has no elements: give indexes, such as 0-9");
  VRUN_TRY(CheckRanges(array.ranges(), "array"));
  const uint64_t count = ElementCount(array);
  if (count > kMaxElements) {
    return Error(Code::kInvalid, "array: " + std::to_string(count) + " elements are asked for, " +
                                     std::to_string(kMaxElements) + " are the limit: submit several arrays");
  }
  if (!array.sweeps().empty() &&
      (count != Combinations(array) || MinIndex(array) != 0 || MaxIndex(array) != count - 1)) {
    return Error(Code::kInvalid, "array: a sweep has the indexes 0-" + std::to_string(Combinations(array) - 1) +
                                     ", one for each combination: leave the indexes out");
  }
  return {};
}

uint64_t ElementCount(const ElementRanges& ranges) {
  uint64_t count = 0;
  for (const Range& range : ranges) count += CountOf(range);
  return count;
}

uint32_t IndexAt(const v1::Array& array, uint64_t position) {
  for (const Range& range : array.ranges()) {
    const uint64_t count = CountOf(range);
    if (position < count) return range.first() + static_cast<uint32_t>(position) * StepOf(range);
    position -= count;
  }
  VRUN_CHECK(false);
}

std::optional<uint64_t> PositionOf(const v1::Array& array, uint32_t index) {
  uint64_t before = 0;
  for (const Range& range : array.ranges()) {
    if (index < range.first()) break;
    if (index <= range.last()) {
      const uint32_t offset = index - range.first();
      if (offset % StepOf(range) != 0) return std::nullopt;
      return before + offset / StepOf(range);
    }
    before += CountOf(range);
  }
  return std::nullopt;
}

uint32_t MinIndex(const v1::Array& array) { return array.ranges(0).first(); }
uint32_t MaxIndex(const v1::Array& array) { return LastOf(*array.ranges().rbegin()); }

ElementRanges RangesOf(const std::vector<uint32_t>& indexes) {
  ElementRanges ranges;
  for (size_t i = 0; i < indexes.size();) {
    Range* range = ranges.Add();
    range->set_first(indexes[i]);
    range->set_last(indexes[i]);
    range->set_step(1);
    size_t next = i + 1;
    // Two indexes that are not neighbours are no range yet: "1,5" reads better than "1-5:4".
    const bool neighbours = next < indexes.size() && indexes[next] - indexes[i] == 1;
    const bool three = i + 2 < indexes.size() && indexes[i + 2] - indexes[i + 1] == indexes[i + 1] - indexes[i];
    if (neighbours || three) {
      range->set_step(indexes[next] - indexes[i]);
      for (; next < indexes.size() && indexes[next] - indexes[next - 1] == range->step(); ++next) {
        range->set_last(indexes[next]);
      }
    }
    i = next;
  }
  return ranges;
}

std::string RangesText(const ElementRanges& ranges) {
  std::string text;
  for (const Range& range : ranges) {
    if (!text.empty()) text += ',';
    text += std::to_string(range.first());
    if (range.last() == range.first()) continue;
    text += "-" + std::to_string(range.last());
    if (StepOf(range) != 1) text += ":" + std::to_string(range.step());
  }
  return text;
}

v1::RunSpec ElementSpec(const v1::RunSpec& spec, const v1::Array& array, uint32_t index) {
  v1::RunSpec out = spec;
  const std::optional<uint64_t> position = PositionOf(array, index);
  if (array.sweeps().empty() || !position) return out;
  const std::vector<int> at = ValuesAt(array, *position);
  for (std::string& word : *out.mutable_command()->mutable_argv()) Replace(array, at, "", &word);
  for (std::string& variable : *out.mutable_command()->mutable_environment()) {
    Replace(array, at, std::string_view(variable).substr(0, variable.find('=')), &variable);
  }
  return out;
}

std::vector<std::string> UnknownNames(const v1::RunSpec& spec, const v1::Array& array) {
  std::vector<std::string> unknown;
  if (array.sweeps().empty()) return unknown;
  std::set<std::string> known;
  for (const v1::Array::Sweep& sweep : array.sweeps()) known.insert(sweep.name());
  for (const std::string& word : spec.command().argv()) {
    ForEachName(word, [&](size_t brace, const std::string& name) {
      if (known.insert(name).second) unknown.push_back(name);
      return brace + name.size() + 2;
    });
  }
  return unknown;
}

Status CheckNames(const v1::RunSpec& spec, const v1::Array& array) {
  const std::vector<std::string> unknown = UnknownNames(spec, array);
  if (unknown.empty()) return {};
  std::string names;
  for (const v1::Array::Sweep& sweep : array.sweeps()) names += (names.empty() ? "{" : ", {") + sweep.name() + "}";
  return Error(Code::kInvalid, "array: no sweep is called {" + unknown[0] + "}: use " + names + ", or add --sweep " +
                                   unknown[0] + "=...");
}

std::vector<std::string> ElementVariables(const v1::Array& array, uint32_t index) {
  std::vector<std::string> variables;
  const std::optional<uint64_t> position = PositionOf(array, index);
  if (!position) return variables;
  const std::vector<int> at = ValuesAt(array, *position);
  for (int i = 0; i < array.sweeps_size(); ++i) {
    variables.push_back(array.sweeps(i).name() + "=" + array.sweeps(i).values(at[static_cast<size_t>(i)]));
  }
  return variables;
}

}  // namespace vrun
