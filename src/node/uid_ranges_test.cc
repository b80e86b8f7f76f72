// SPDX-License-Identifier: Apache-2.0
#include "node/uid_ranges.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace vrun::node {
namespace {

struct UidRangesTest : testing::Test {
  std::string directory = "/var/tmp/vrun-uids-XXXXXX";
  void SetUp() override { ASSERT_NE(mkdtemp(directory.data()), nullptr); }
  void TearDown() override { ASSERT_TRUE(RemoveTree(directory)); }
  std::string path() const { return directory + "/uid_ranges"; }
};

TEST_F(UidRangesTest, AHomeKeepsItsRangeAndSharesItWithNobody) {
  uint32_t a, b;
  {
    Result<UidRanges> ranges = UidRanges::Load(path());
    ASSERT_TRUE(ranges);
    a = ranges->RangeFor("home-a")->base;
    b = ranges->RangeFor("home-b")->base;
    EXPECT_GE(std::max(a, b) - std::min(a, b), kUidRangeSize);
    EXPECT_EQ(ranges->RangeFor("home-a")->base, a);
  }
  Result<UidRanges> again = UidRanges::Load(path());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->RangeFor("home-b")->base, b);
  EXPECT_EQ(again->RangeFor("home-a")->base, a);
}

TEST_F(UidRangesTest, ADamagedFileIsAnErrorNotAGuess) {
  for (const char* text : {"home-a\n", "home-a 17\n", "home-a 1073741824\nhome-b 1073741824\n", " 1073741824\n",
                           "h 1073741824x\n", "h 1073741824 \n", "h 1073741824 70000 70000\n", "h 1073741824 5\n"}) {
    ASSERT_TRUE(WriteFileAtomic(path(), text, 0600));
    EXPECT_FALSE(UidRanges::Load(path())) << text;
  }
}

TEST_F(UidRangesTest, IdsAboveTheRangeGetPlacesThatTheyKeep) {
  {
    Result<UidRanges> ranges = UidRanges::Load(path());
    ASSERT_TRUE(ranges);
    EXPECT_EQ(ranges->RangeFor("a", {1000, 4000000000u, 65535, 70000})->high,
              (std::vector<uint32_t>{4000000000u, 70000}));
  }
  Result<UidRanges> again = UidRanges::Load(path());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->RangeFor("a", {65536, 70000})->high, (std::vector<uint32_t>{4000000000u, 70000, 65536}));
  EXPECT_TRUE(again->RangeFor("b")->high.empty());
  std::vector<uint32_t> many;
  for (uint32_t i = 0; i < 340; ++i) many.push_back(100000 + i);
  EXPECT_EQ(again->RangeFor("c", many).error().code(), Code::kExhausted);
  EXPECT_EQ(again->Find("c"), nullptr);
  many.pop_back();
  EXPECT_TRUE(again->RangeFor("c", many));
}

TEST_F(UidRangesTest, AnIdThatCouldForgeALineIsRefused) {
  Result<UidRanges> ranges = UidRanges::Load(path());
  ASSERT_TRUE(ranges);
  EXPECT_FALSE(ranges->RangeFor("a b"));
  EXPECT_FALSE(ranges->RangeFor("a\nb"));
  EXPECT_FALSE(ranges->RangeFor(""));
}

}  // namespace
}  // namespace vrun::node
