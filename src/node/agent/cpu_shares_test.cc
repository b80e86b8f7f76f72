// SPDX-License-Identifier: Apache-2.0
#include "node/agent/cpu_shares.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

TEST(CpuShares, JobsOfWholeCoresHaveProcessorsOfTheirOwn) {
  CpuShares shares({0, 1, 2, 3});
  EXPECT_EQ((CpuList{0, 1}), shares.Give({1, 1}, 2000));
  EXPECT_EQ((CpuList{2}), shares.Give({2, 1}, 1000));
  EXPECT_EQ((CpuList{3}), shares.Give({3, 1}, 1000));
  shares.Free({1, 1});
  EXPECT_EQ((CpuList{0}), shares.Give({4, 1}, 1000));
  EXPECT_EQ((CpuList{1}), shares.Give({4, 2}, 1000));
}

TEST(CpuShares, FractionsOfACoreShareAProcessorSoThatWholeCoresStayWhole) {
  CpuShares shares({0, 1, 2, 3});
  EXPECT_EQ((CpuList{0}), shares.Give({1, 1}, 500));
  EXPECT_EQ((CpuList{0}), shares.Give({2, 1}, 500));
  EXPECT_EQ((CpuList{1, 2, 3}), shares.Give({3, 1}, 3000));
  EXPECT_EQ(1000u, shares.LoadOf(0));
  shares.Free({2, 1});
  EXPECT_EQ((CpuList{0}), shares.Give({4, 1}, 300));
}

TEST(CpuShares, AFractionBeyondWholeCoresIsOneMoreProcessor) {
  CpuShares shares({0, 1, 2, 3});
  EXPECT_EQ((CpuList{0, 1}), shares.Give({1, 1}, 1500));
  EXPECT_EQ((CpuList{2, 3}), shares.Give({2, 1}, 1600));
}

TEST(CpuShares, AJobThatHasAsManyAsThereAreIsNotLimitedToAny) {
  CpuShares shares({0, 1});
  EXPECT_TRUE(shares.Give({1, 1}, 2000).empty());
  EXPECT_TRUE(shares.Give({2, 1}, 64000).empty());
  EXPECT_TRUE(shares.Give({3, 1}, 0).empty());
  EXPECT_TRUE(CpuShares({5}).Give({1, 1}, 500).empty());
}

TEST(CpuShares, WhatANodeOffersBeyondItsProcessorsIsSpread) {
  CpuShares shares({4, 6});
  EXPECT_EQ((CpuList{4}), shares.Give({1, 1}, 1000));
  EXPECT_EQ((CpuList{6}), shares.Give({2, 1}, 1000));
  EXPECT_EQ((CpuList{4}), shares.Give({3, 1}, 1000));
  EXPECT_EQ((CpuList{6}), shares.Give({4, 1}, 1000));
}

TEST(CpuShares, JobsThatRanBeforeTheAgentWasRestartedKeepTheirs) {
  CpuShares shares({0, 1, 2});
  shares.Restore({7, 1}, 1000, {0});
  shares.Restore({8, 1}, 500, {9});  // a processor that is no longer ours
  EXPECT_EQ((CpuList{0}), shares.Give({7, 1}, 1000));
  EXPECT_EQ((CpuList{1}), shares.Give({9, 1}, 1000));
  shares.Free({7, 1});
  shares.Free({7, 1});
  shares.Free({8, 1});
  EXPECT_EQ(0u, shares.LoadOf(0));
  EXPECT_EQ((CpuList{0, 2}), shares.Give({10, 1}, 2000));
}

}  // namespace
}  // namespace vrun::node
