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
    a = *ranges->BaseFor("home-a");
    b = *ranges->BaseFor("home-b");
    EXPECT_GE(std::max(a, b) - std::min(a, b), kUidRangeSize);
    EXPECT_EQ(*ranges->BaseFor("home-a"), a);
  }
  Result<UidRanges> again = UidRanges::Load(path());
  ASSERT_TRUE(again);
  EXPECT_EQ(*again->BaseFor("home-b"), b);
  EXPECT_EQ(*again->BaseFor("home-a"), a);
}

TEST_F(UidRangesTest, ADamagedFileIsAnErrorNotAGuess) {
  for (const char* text :
       {"home-a\n", "home-a 17\n", "home-a 1073741824\nhome-b 1073741824\n", " 1073741824\n", "h 1073741824x\n"}) {
    ASSERT_TRUE(WriteFileAtomic(path(), text, 0600));
    EXPECT_FALSE(UidRanges::Load(path())) << text;
  }
}

TEST_F(UidRangesTest, AnIdThatCouldForgeALineIsRefused) {
  Result<UidRanges> ranges = UidRanges::Load(path());
  ASSERT_TRUE(ranges);
  EXPECT_FALSE(ranges->BaseFor("a b"));
  EXPECT_FALSE(ranges->BaseFor("a\nb"));
  EXPECT_FALSE(ranges->BaseFor(""));
}

}  // namespace
}  // namespace vrun::node
