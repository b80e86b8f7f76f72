// SPDX-License-Identifier: Apache-2.0
#include "jobs/gang.h"

#include <gtest/gtest.h>

#include <csignal>

#include "jobs/ending.h"

namespace vrun {
namespace {

v1::ExitRecord Pod(uint32_t pod, v1::ExitRecord::Kind kind, int code, int signal = 0, const std::string& reason = "") {
  v1::ExitRecord record;
  record.set_pod(pod);
  record.set_kind(kind);
  record.set_exit_code(code);
  record.set_signal(signal);
  record.set_reason(reason);
  record.set_node("n" + std::to_string(pod));
  record.set_started_us(10 + pod);
  record.set_ended_us(100 + pod);
  return record;
}

v1::Gang Of(uint32_t pods, uint32_t ranks = 1) {
  v1::Gang gang;
  gang.set_pods(pods);
  gang.set_ranks_per_pod(ranks);
  return gang;
}

TEST(Gang, AllWellIsZero) {
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::EXITED, 0), Pod(1, v1::ExitRecord::EXITED, 0)};
  const v1::ExitRecord record = GangRecord(pods, Of(2));
  EXPECT_EQ(ExitStatus(record), 0);
  EXPECT_EQ(EndState(record), v1::COMPLETED);
  EXPECT_EQ(EndReason(record), "");
  ASSERT_EQ(record.ranks_size(), 2);
  EXPECT_EQ(record.ranks(1).rank(), 1u);
  EXPECT_EQ(record.ranks(1).node(), "n1");
  EXPECT_EQ(record.started_us(), 10);
  EXPECT_EQ(record.ended_us(), 101);
}

TEST(Gang, TheFirstFailureIsNamedAndItsVictimsDoNotCount) {
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::GANG_ENDED, 0, SIGTERM, "rank 1 on n1: exit 3"),
                                 Pod(1, v1::ExitRecord::EXITED, 3)};
  const v1::ExitRecord record = GangRecord(pods, Of(2));
  EXPECT_EQ(ExitStatus(record), 3);
  EXPECT_EQ(EndReason(record), "rank 1 on n1: exit 3");
  EXPECT_TRUE(record.ranks(0).killed());
  EXPECT_FALSE(record.ranks(1).killed());
}

TEST(Gang, WithoutKillingTheStatusIsTheHighestAndTheReasonTheFirst) {
  v1::ExitRecord early = Pod(1, v1::ExitRecord::EXITED, 2);
  early.set_ended_us(50);
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::EXITED, 9), early,
                                 Pod(2, v1::ExitRecord::SIGNALED, 0, SIGKILL)};
  const v1::ExitRecord record = GangRecord(pods, Of(3));
  EXPECT_EQ(ExitStatus(record), 128 + SIGKILL);
  EXPECT_EQ(EndReason(record), "rank 1 on n1: exit 2");
}

TEST(Gang, RanksOfOnePodAreToldApart) {
  v1::ExitRecord pod = Pod(0, v1::ExitRecord::EXITED, 4);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::RankExit* rank = pod.add_ranks();
    rank->set_rank(i);
    rank->set_exit_code(i == 1 ? 4 : 0);
    rank->set_signal(i == 1 ? 0 : SIGTERM);
    rank->set_killed(i == 0);
  }
  const v1::ExitRecord record = GangRecord(std::span(&pod, 1), Of(1, 2));
  EXPECT_EQ(ExitStatus(record), 4);
  EXPECT_EQ(EndReason(record), "rank 1 on n0: exit 4");
}

TEST(Gang, ACancelledJobIsCancelled) {
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::CANCELLED_BY_USER, 0, SIGTERM),
                                 Pod(1, v1::ExitRecord::CANCELLED_BY_USER, 0, SIGTERM)};
  const v1::ExitRecord record = GangRecord(pods, Of(2));
  EXPECT_EQ(EndState(record), v1::CANCELLED);
  EXPECT_EQ(ExitStatus(record), 128 + SIGTERM);
}

TEST(Gang, APodThatRanOutOfMemoryIsNamed) {
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::GANG_ENDED, 0, SIGTERM),
                                 Pod(1, v1::ExitRecord::OUT_OF_MEMORY_KILL, 0)};
  const v1::ExitRecord record = GangRecord(pods, Of(2));
  EXPECT_EQ(EndState(record), v1::OUT_OF_MEMORY);
  EXPECT_EQ(EndReason(record), "on n1: killed: out of memory");
}

TEST(Gang, OnlyVictimsAreNoSuccess) {
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::EXITED, 0),
                                 Pod(1, v1::ExitRecord::GANG_ENDED, 0, SIGTERM, "node n2 is lost")};
  const v1::ExitRecord record = GangRecord(pods, Of(2));
  EXPECT_NE(ExitStatus(record), 0);
  EXPECT_EQ(EndState(record), v1::FAILED);
  EXPECT_EQ(EndReason(record), "node n2 is lost");
}

TEST(Gang, PodsThatLeftDoNotCount) {
  v1::Gang gang = Of(3);
  gang.set_min_pods(1);
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::EXITED, 0), Pod(1, v1::ExitRecord::LEFT_GANG, 3),
                                 Pod(5, v1::ExitRecord::EXITED, 0)};
  const v1::ExitRecord record = GangRecord(pods, gang);
  EXPECT_EQ(ExitStatus(record), 0);
  EXPECT_EQ(EndState(record), v1::COMPLETED);
  EXPECT_EQ(EndReason(record), "");
  ASSERT_EQ(record.ranks_size(), 3);
  EXPECT_TRUE(record.ranks(1).killed());
  EXPECT_EQ(record.ranks(2).rank(), 5u);
  EXPECT_EQ(EndState(pods[1]), v1::COMPLETED);
}

TEST(Gang, TheCommandOfALauncherDecides) {
  v1::Gang gang = Of(2, 4);
  gang.set_launcher(true);
  const v1::ExitRecord pods[] = {Pod(0, v1::ExitRecord::EXITED, 0), Pod(1, v1::ExitRecord::GANG_ENDED, 0, SIGTERM)};
  EXPECT_EQ(ExitStatus(GangRecord(pods, gang)), 0);
  EXPECT_EQ(RanksPerPod(gang), 1u);
}

}  // namespace
}  // namespace vrun
