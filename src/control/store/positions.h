// SPDX-License-Identifier: Apache-2.0
// A set of positions of an array's elements (jobs/array.h), stored as intervals: a million elements that all wait are
// one interval.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "jobs/array.h"

namespace vrun::control {

class Positions {
 public:
  // Begin -> end, which is not in the interval. Intervals do not touch each other.
  using Intervals = std::map<uint64_t, uint64_t>;

  void Add(uint64_t begin, uint64_t end);
  void Add(uint64_t position) { Add(position, position + 1); }
  void Add(const Positions& other);
  void Remove(uint64_t begin, uint64_t end);
  void Remove(uint64_t position) { Remove(position, position + 1); }
  void Remove(const Positions& other);

  bool Contains(uint64_t position) const;
  bool empty() const { return intervals_.empty(); }
  uint64_t size() const { return size_; }
  uint64_t first() const { return intervals_.begin()->first; }  // of a set that is not empty
  const Intervals& intervals() const { return intervals_; }
  // What both have.
  Positions And(const Positions& other) const;
  bool operator==(const Positions& other) const { return intervals_ == other.intervals_; }

  std::string Encode() const;
  // False: no such bytes were written by Encode.
  static bool Decode(std::string_view bytes, Positions* out);

 private:
  Intervals intervals_;
  uint64_t size_ = 0;
};

// All elements of an array, in order. Takes constant time for each.
class ElementWalk {
 public:
  explicit ElementWalk(const v1::Array& array) : array_(array) { Enter(); }
  bool over() const { return range_ >= array_.ranges_size(); }
  uint32_t index() const { return static_cast<uint32_t>(index_); }
  uint64_t position() const { return position_; }
  void Next();

 private:
  void Enter();

  const v1::Array& array_;
  int range_ = 0;
  uint64_t index_ = 0, position_ = 0;
};

// The elements whose index is in the ranges, which CheckRanges accepts.
Positions Select(const v1::Array& array, const ElementRanges& ranges);
// The indexes of these positions.
ElementRanges RangesOf(const v1::Array& array, const Positions& positions);

}  // namespace vrun::control
