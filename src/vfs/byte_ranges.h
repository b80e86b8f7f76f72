// SPDX-License-Identifier: Apache-2.0
// A set of bytes of a file. Not thread safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace vrun::vfs {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const ByteRange&) const = default;
};

class ByteRanges {
 public:
  void Add(uint64_t offset, uint64_t length) {
    if (length == 0) return;
    uint64_t end = offset + std::min(length, UINT64_MAX - offset);
    auto it = ranges_.upper_bound(offset);
    if (it != ranges_.begin() && std::prev(it)->second >= offset) --it;
    while (it != ranges_.end() && it->first <= end) {
      offset = std::min(offset, it->first);
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    ranges_.emplace(offset, end);
  }
  // Widens every range to whole units.
  void Round(uint64_t unit) {
    ByteRanges rounded;
    for (const auto& [from, to] : ranges_) {
      const uint64_t first = from / unit * unit;
      rounded.Add(first, (to - first + unit - 1) / unit * unit);
    }
    *this = std::move(rounded);
  }
  void Clear() { ranges_.clear(); }
  bool empty() const { return ranges_.empty(); }
  size_t size() const { return ranges_.size(); }
  uint64_t first() const { return ranges_.begin()->first; }
  // First byte of [offset, end) that is in the set (NextIn) or not in it (NextOut); `end`: none.
  uint64_t NextIn(uint64_t offset, uint64_t end) const {
    const auto it = Containing(offset);
    if (it != ranges_.end()) return offset;
    const auto next = ranges_.upper_bound(offset);
    return next == ranges_.end() ? end : std::min(end, next->first);
  }
  uint64_t NextOut(uint64_t offset, uint64_t end) const {
    const auto it = Containing(offset);
    return it == ranges_.end() ? offset : std::min(end, it->second);
  }
  // The ranges below `end`, clipped to it.
  std::vector<ByteRange> Below(uint64_t end) const {
    std::vector<ByteRange> out;
    for (const auto& [from, to] : ranges_) {
      if (from < end) out.push_back({from, std::min(to, end) - from});
    }
    return out;
  }
  uint64_t BytesBelow(uint64_t end) const {
    uint64_t bytes = 0;
    for (const ByteRange& range : Below(end)) bytes += range.length;
    return bytes;
  }
  // Merges neighbouring ranges until at most `most` are left.
  void Coarsen(size_t most) {
    while (ranges_.size() > most) {
      auto at = ranges_.begin();
      while (at != ranges_.end() && std::next(at) != ranges_.end()) {
        const auto next = std::next(at);
        at->second = next->second;
        ranges_.erase(next);
        ++at;
      }
    }
  }

 private:
  std::map<uint64_t, uint64_t>::const_iterator Containing(uint64_t offset) const {
    auto it = ranges_.upper_bound(offset);
    if (it == ranges_.begin()) return ranges_.end();
    --it;
    return it->second > offset ? it : ranges_.end();
  }
  std::map<uint64_t, uint64_t> ranges_;  // offset -> end; ranges do not touch
};

}  // namespace vrun::vfs
