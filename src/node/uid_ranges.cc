// SPDX-License-Identifier: Apache-2.0
#include "node/uid_ranges.h"

#include <charconv>
#include <set>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::node {

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
    size_t space = line.find(' ');
    uint32_t base = 0;
    bool ok = space != std::string_view::npos && space > 0;
    if (ok) {
      auto [p, e] = std::from_chars(line.data() + space + 1, line.data() + line.size(), base);
      ok = e == std::errc() && p == line.data() + line.size() && base >= kUidRangeStart && base % kUidRangeSize == 0;
    }
    // Two homes on one range would be two users who own each other's files: never guess here.
    if (!ok || !used.insert(base).second) {
      return Error(Code::kCorrupt, Escape(path) + ": bad line \"" + Escape(line) + "\": repair or remove the file");
    }
    ranges.bases_[std::string(line.substr(0, space))] = base;
  }
  return ranges;
}

Result<uint32_t> UidRanges::BaseFor(const std::string& home_id) {
  if (auto it = bases_.find(home_id); it != bases_.end()) return it->second;
  if (home_id.empty() || home_id.find_first_of(" \n") != std::string::npos) {
    return Error(Code::kInvalid, "home id " + Escape(home_id) + ": not an id");
  }
  uint32_t next = kUidRangeStart;
  for (const auto& [id, base] : bases_) next = std::max(next, base + kUidRangeSize);
  if (next < kUidRangeStart || next >= 0x80000000u) {
    return Error(Code::kExhausted,
                 "no uid range is left on this node: remove homes that are gone from " + Escape(path_));
  }
  std::map<std::string, uint32_t> bases = bases_;
  bases[home_id] = next;
  std::string text;
  for (const auto& [id, base] : bases) text += id + " " + std::to_string(base) + "\n";
  VRUN_TRY(WriteFileAtomic(path_, text, 0600));
  bases_ = std::move(bases);
  return next;
}

}  // namespace vrun::node
