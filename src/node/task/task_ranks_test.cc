// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_ranks.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace vrun::node {
namespace {

using Then = TaskRanks::Then;

v1::StartAttempt Order(uint32_t ranks) {
  v1::StartAttempt order;
  order.mutable_spec()->mutable_gang()->set_ranks_per_pod(ranks);
  return order;
}

TEST(TaskRanks, TheFirstFailureEndsTheOthersOnce) {
  TaskRanks ranks(Order(3));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({0, 0}, false));
  EXPECT_EQ(Then::kEndOthers, ranks.OnEnd({2, 7 << 8}, false));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({1, SIGTERM}, false));
  EXPECT_EQ(2u, *ranks.facts().first_failed);
  EXPECT_EQ((std::vector<bool>{false, true, false}), ranks.facts().killed);
}

TEST(TaskRanks, NobodyIsLeftToBeEnded) {
  TaskRanks ranks(Order(2));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({0, 0}, false));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({1, 1 << 8}, false));
  EXPECT_EQ(1u, *ranks.facts().first_failed);
}

TEST(TaskRanks, NoKill) {
  v1::StartAttempt order = Order(2);
  order.mutable_spec()->mutable_gang()->set_no_kill(true);
  TaskRanks ranks(order);
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({0, 1 << 8}, false));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({1, 2 << 8}, false));
  EXPECT_EQ(0u, *ranks.facts().first_failed);
  EXPECT_EQ((std::vector<bool>{false, false}), ranks.facts().killed);
}

TEST(TaskRanks, EndsWhileTheTaskIsStoppedAreNoFailures) {
  TaskRanks ranks(Order(2));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({0, SIGTERM}, true));
  EXPECT_FALSE(ranks.facts().first_failed);
  EXPECT_EQ((std::vector<bool>{true, true}), ranks.facts().killed);
}

TEST(TaskRanks, TheWaitBeginsWithTheFirstCleanEnd) {
  v1::StartAttempt order = Order(4);
  order.mutable_spec()->mutable_gang()->set_wait_s(30);
  TaskRanks ranks(order);
  EXPECT_EQ(Then::kWaitForOthers, ranks.OnEnd({1, 0}, false));
  EXPECT_EQ(Then::kNothing, ranks.OnEnd({2, 0}, false));
  EXPECT_TRUE(ranks.OthersAreLate());
  EXPECT_FALSE(ranks.OthersAreLate());
  EXPECT_EQ("2 processes had not ended 30 s after rank 1: ended (--wait)", ranks.late());
}

}  // namespace
}  // namespace vrun::node
