// SPDX-License-Identifier: Apache-2.0
#include "node/uid_ranges.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::node {
namespace {

// Parses "TENANT BASE [ID]..."; false if malformed.
bool ParseLine(std::string_view line, std::string* tenant, UidRanges::Range* range) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return false;
  *tenant = line.substr(0, space);
  std::vector<uint32_t> numbers;
  for (size_t at = space; at < line.size();) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(line.data() + at + 1, line.data() + line.size(), number);
    if (error != std::errc() || (end != line.data() + line.size() && *end != ' ')) return false;
    numbers.push_back(number);
    at = static_cast<size_t>(end - line.data());
  }
  if (numbers.empty()) return false;
  range->base = numbers[0];
  range->high.assign(numbers.begin() + 1, numbers.end());
  const auto low = [](uint32_t id) { return id < IdMap::kIds; };
  const std::set<uint32_t> different(range->high.begin(), range->high.end());
  return range->base >= kUidRangeStart && range->base % kUidRangeSize == 0 && range->high.size() <= IdMap::kHighIds &&
         different.size() == range->high.size() && std::ranges::none_of(range->high, low);
}

}  // namespace

Result<UidRanges> UidRanges::Load(const std::string& path) {
  UidRanges ranges;
  ranges.path_ = path;
  if (!PathExists(path)) return ranges;
  VRUN_ASSIGN(std::string text, ReadFile(path));
  std::set<uint32_t> used;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    std::string tenant;
    Range range;
    // If two homes shared a range, two users would own each other's files: never guess here.
    if (!ParseLine(line, &tenant, &range) || !used.insert(range.base).second) {
      return Error(Code::kCorrupt, Escape(path) + ": bad line \"" + Escape(line) + "\": repair or remove the file");
    }
    ranges.ranges_[tenant] = std::move(range);
  }
  return ranges;
}

const UidRanges::Range* UidRanges::Find(const std::string& tenant) const {
  const auto it = ranges_.find(tenant);
  return it == ranges_.end() ? nullptr : &it->second;
}

Result<UidRanges::Range> UidRanges::RangeFor(const std::string& tenant, const std::vector<uint32_t>& ids) {
  if (tenant.empty() || tenant.find_first_of(" \n") != std::string::npos) {
    return Error(Code::kInvalid, "home id " + Escape(tenant) + ": not an id");
  }
  std::map<std::string, Range> ranges = ranges_;
  const auto [it, made] = ranges.try_emplace(tenant);
  Range& range = it->second;
  if (made) {
    uint32_t next = kUidRangeStart;
    for (const auto& [other, theirs] : ranges_) next = std::max(next, theirs.base + kUidRangeSize);
    if (next < kUidRangeStart || next >= 0x80000000u) {
      return Error(Code::kExhausted,
                   "no uid range is left on this node: remove homes that are gone from " + Escape(path_));
    }
    range.base = next;
  }
  const size_t before = range.high.size();
  for (const uint32_t id : ids) {
    if (id >= IdMap::kIds && std::ranges::find(range.high, id) == range.high.end()) range.high.push_back(id);
  }
  if (range.high.size() > IdMap::kHighIds) {
    return Error(Code::kExhausted, "the user has " + std::to_string(range.high.size()) +
                                       " uids and groups above 65535: Linux maps " + std::to_string(IdMap::kHighIds));
  }
  if (!made && range.high.size() == before) return range;
  std::string text;
  for (const auto& [name, r] : ranges) {
    text += name + " " + std::to_string(r.base);
    for (const uint32_t id : r.high) text += " " + std::to_string(id);
    text += "\n";
  }
  VRUN_TRY(WriteFileAtomic(path_, text, 0600));
  ranges_ = std::move(ranges);
  return *Find(tenant);
}

}  // namespace vrun::node
