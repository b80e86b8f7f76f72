// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <gtest/gtest.h>

namespace vrun {
namespace {

TEST(CpuList, IsWrittenAndReadAsTheKernelDoes) {
  EXPECT_EQ("", FormatCpuList({}));
  EXPECT_EQ("0", FormatCpuList({0}));
  EXPECT_EQ("0-3,8,10-11", FormatCpuList({0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ((CpuList{0, 1, 2, 3, 8}), *ParseCpuList("0-3,8\n"));
  EXPECT_EQ((CpuList{1, 2, 3}), *ParseCpuList("2-3,1,2"));
  EXPECT_TRUE(ParseCpuList("")->empty());
  for (const char* wrong : {"x", "1-", "-1", "3-1", "1,", ",1", "1 2", "70000", "0-99999"}) {
    EXPECT_FALSE(ParseCpuList(wrong)) << wrong;
  }
}

TEST(CpuList, IsABitMaskForTheKernel) {
  EXPECT_TRUE(CpuMask({}).empty());
  EXPECT_EQ((std::vector<unsigned long>{0b101}), CpuMask({0, 2}));
  EXPECT_EQ((std::vector<unsigned long>{0, 2}), CpuMask({65}));
  EXPECT_FALSE(AllowedCpus().empty());
}

}  // namespace
}  // namespace vrun
