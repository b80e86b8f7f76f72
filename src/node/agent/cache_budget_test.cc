// SPDX-License-Identifier: Apache-2.0
#include "node/agent/cache_budget.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

TEST(ShareCache, OneTenantHasItAll) {
  EXPECT_EQ(ShareCache(100, {{"a", 30, true, 1}}).at("a"), 100u);
  EXPECT_TRUE(ShareCache(100, {}).empty());
}

TEST(ShareCache, ANewcomerHasAFairShareAndTheOthersGiveWayAsItGrows) {
  auto most = ShareCache(100, {{"a", 100, true, 1}, {"b", 0, true, 1}});
  EXPECT_EQ(most.at("a"), 100u);
  EXPECT_EQ(most.at("b"), 50u);
  most = ShareCache(100, {{"a", 100, true, 1}, {"b", 40, true, 1}});
  EXPECT_EQ(most.at("a"), 60u);
  EXPECT_EQ(most.at("b"), 50u);
  most = ShareCache(100, {{"a", 20, true, 1}, {"b", 50, true, 1}});
  EXPECT_EQ(most.at("a"), 50u);
  EXPECT_EQ(most.at("b"), 80u) << "what the others leave";
}

TEST(ShareCache, WhatRestsLongestGivesWayFirst) {
  const auto most = ShareCache(160, {{"a", 100, true, 9}, {"old", 40, false, 1}, {"new", 40, false, 5}});
  EXPECT_EQ(most.at("a"), 160u);
  EXPECT_EQ(most.at("old"), 10u);
  EXPECT_EQ(most.at("new"), 40u);
}

TEST(ShareCache, RestingOnesKeepWhatFits) {
  const auto most = ShareCache(1000, {{"a", 100, true, 9}, {"b", 300, false, 1}});
  EXPECT_EQ(most.at("b"), 300u);
}

TEST(ShareCache, WhenTheActiveOnesNeedAllTheRestHoldsNothing) {
  const auto most = ShareCache(100, {{"a", 60, true, 9}, {"b", 60, true, 9}, {"c", 50, false, 1}});
  EXPECT_EQ(most.at("a"), 50u);
  EXPECT_EQ(most.at("c"), 0u);
}

}  // namespace
}  // namespace vrun::node
