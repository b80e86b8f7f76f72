// SPDX-License-Identifier: Apache-2.0
#include "control/store/positions.h"

#include <algorithm>
#include <vector>

namespace vrun::control {
namespace {

void PutNumber(uint64_t n, std::string* out) {
  for (; n >= 128; n >>= 7) out->push_back(static_cast<char>(n | 128));
  out->push_back(static_cast<char>(n));
}

bool TakeNumber(std::string_view* bytes, uint64_t* n) {
  *n = 0;
  for (unsigned shift = 0; shift < 63 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    *n |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

}  // namespace

void Positions::Add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = intervals_.upper_bound(begin);
  if (it != intervals_.begin() && std::prev(it)->second >= begin) --it;
  while (it != intervals_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    size_ -= it->second - it->first;
    it = intervals_.erase(it);
  }
  intervals_.emplace_hint(it, begin, end);
  size_ += end - begin;
}

void Positions::Add(const Positions& other) {
  for (const auto& [begin, end] : other.intervals_) Add(begin, end);
}

void Positions::Remove(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = intervals_.upper_bound(begin);
  if (it != intervals_.begin() && std::prev(it)->second > begin) --it;
  while (it != intervals_.end() && it->first < end) {
    const auto [from, to] = *it;
    size_ -= to - from;
    it = intervals_.erase(it);
    if (from < begin) {
      intervals_.emplace_hint(it, from, begin);
      size_ += begin - from;
    }
    if (to > end) {
      intervals_.emplace_hint(it, end, to);
      size_ += to - end;
    }
  }
}

void Positions::Remove(const Positions& other) {
  for (const auto& [begin, end] : other.intervals_) Remove(begin, end);
}

bool Positions::Contains(uint64_t position) const {
  const auto it = intervals_.upper_bound(position);
  return it != intervals_.begin() && std::prev(it)->second > position;
}

Positions Positions::And(const Positions& other) const {
  Positions both;
  for (auto a = intervals_.begin(), b = other.intervals_.begin();
       a != intervals_.end() && b != other.intervals_.end();) {
    both.Add(std::max(a->first, b->first), std::min(a->second, b->second));
    a->second < b->second ? ++a : ++b;
  }
  return both;
}

std::string Positions::Encode() const {
  std::string out;
  uint64_t before = 0;
  for (const auto& [begin, end] : intervals_) {
    PutNumber(begin - before, &out);
    PutNumber(end - begin, &out);
    before = end;
  }
  return out;
}

bool Positions::Decode(std::string_view bytes, Positions* out) {
  *out = {};
  uint64_t at = 0;
  while (!bytes.empty()) {
    uint64_t gap = 0, length = 0;
    if (!TakeNumber(&bytes, &gap) || !TakeNumber(&bytes, &length)) return false;
    if (gap > kMaxElements || length > kMaxElements) return false;
    out->Add(at + gap, at + gap + length);
    at += gap + length;
  }
  return true;
}

void ElementWalk::Enter() {
  if (!over()) index_ = array_.ranges(range_).first();
}

void ElementWalk::Next() {
  ++position_;
  index_ += std::max(array_.ranges(range_).step(), 1u);
  if (index_ <= array_.ranges(range_).last()) return;
  ++range_;
  Enter();
}

Positions Select(const v1::Array& array, const ElementRanges& ranges) {
  constexpr uint64_t kFew = 100;
  Positions found;
  if (ElementCount(ranges) <= kFew) {
    for (const v1::Array::Range& range : ranges) {
      for (uint64_t index = range.first(); index <= range.last(); index += std::max(range.step(), 1u)) {
        if (const auto position = PositionOf(array, static_cast<uint32_t>(index))) found.Add(*position);
      }
    }
    return found;
  }
  int at = 0;
  for (ElementWalk walk(array); !walk.over() && at < ranges.size(); walk.Next()) {
    while (at < ranges.size() && ranges[at].last() < walk.index()) ++at;
    if (at == ranges.size() || walk.index() < ranges[at].first()) continue;
    if ((walk.index() - ranges[at].first()) % std::max(ranges[at].step(), 1u) == 0) found.Add(walk.position());
  }
  return found;
}

ElementRanges RangesOf(const v1::Array& array, const Positions& positions) {
  std::vector<uint32_t> indexes;
  indexes.reserve(positions.size());
  auto at = positions.intervals().begin();
  for (ElementWalk walk(array); !walk.over() && at != positions.intervals().end(); walk.Next()) {
    if (walk.position() >= at->first) indexes.push_back(walk.index());
    if (walk.position() + 1 == at->second) ++at;
  }
  return vrun::RangesOf(indexes);
}

}  // namespace vrun::control
