// SPDX-License-Identifier: Apache-2.0
#include "control/store/positions.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace vrun::control {
namespace {

void Add(ElementRanges* ranges, uint32_t first, uint32_t last, uint32_t step = 1) {
  v1::Array::Range* range = ranges->Add();
  range->set_first(first);
  range->set_last(last);
  range->set_step(step);
}

TEST(Positions, AreASet) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Positions positions, other;
    std::set<uint64_t> model, second;
    for (int step = 0; step < 60; ++step) {
      const uint64_t begin = random() % 50, end = begin + random() % 12;
      const bool add = random() % 2 == 0, both = random() % 3 == 0;
      add ? positions.Add(begin, end) : positions.Remove(begin, end);
      if (both) other.Add(begin, end);
      for (uint64_t p = begin; p < end; ++p) {
        if (add) model.insert(p);
        if (!add) model.erase(p);
        if (both) second.insert(p);
      }
    }
    ASSERT_EQ(positions.size(), model.size());
    ASSERT_EQ(positions.empty(), model.empty());
    if (!model.empty()) ASSERT_EQ(positions.first(), *model.begin());
    const Positions common = positions.And(other);
    for (uint64_t p = 0; p < 70; ++p) {
      ASSERT_EQ(positions.Contains(p), model.contains(p));
      ASSERT_EQ(common.Contains(p), model.contains(p) && second.contains(p));
    }
    Positions read;
    ASSERT_TRUE(Positions::Decode(positions.Encode(), &read));
    ASSERT_EQ(read, positions);
    positions.Remove(other);
    for (uint64_t p = 0; p < 70; ++p) ASSERT_EQ(positions.Contains(p), model.contains(p) && !second.contains(p));
  }
}

TEST(Positions, AMillionThatWaitAreAFewBytes) {
  Positions all;
  all.Add(0, 1'000'000);
  EXPECT_LE(all.Encode().size(), 4u);
  Positions read;
  EXPECT_FALSE(Positions::Decode("\x80", &read));
  EXPECT_FALSE(Positions::Decode("\x01", &read));
}

TEST(Positions, ElementsAreSelectedByIndex) {
  v1::Array array;
  Add(array.mutable_ranges(), 2, 200, 2);
  Add(array.mutable_ranges(), 301, 303);
  std::vector<uint32_t> indexes;
  for (ElementWalk walk(array); !walk.over(); walk.Next()) {
    ASSERT_EQ(IndexAt(array, walk.position()), walk.index());
    indexes.push_back(walk.index());
  }
  ASSERT_EQ(indexes.size(), ElementCount(array));
  for (const uint32_t step : {1u, 3u, 50u}) {  // few and many
    ElementRanges ranges;
    Add(&ranges, 4, 190, step);
    Add(&ranges, 302, 999);
    const Positions selected = Select(array, ranges);
    for (size_t i = 0; i < indexes.size(); ++i) {
      const uint32_t index = indexes[i];
      const bool in = (index >= 4 && index <= 190 && (index - 4) % step == 0) || index >= 302;
      ASSERT_EQ(selected.Contains(i), in) << index << " step " << step;
    }
  }
  Positions some;
  some.Add(0, 3);
  some.Add(99, 102);
  EXPECT_EQ(RangesText(RangesOf(array, some)), "2-6:2,200,301-302");
}

}  // namespace
}  // namespace vrun::control
