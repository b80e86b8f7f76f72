// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/virtual_clusters.h"

#include <gtest/gtest.h>

#include "sim/policies/core_policy.h"
#include "sim/report/study.h"
#include "sim/testing/test_traces.h"

namespace vrun::sim {
namespace {

TraceJob Job(int64_t submit_s, int64_t run_s, int32_t gpus, int32_t team) {
  TraceJob job;
  job.submit_us = submit_s * kMicrosPerSecond;
  job.duration_us = run_s * kMicrosPerSecond;
  job.gpus = gpus;
  job.team = team;
  return job;
}

TEST(VirtualClusters, SharesAreReadAndChecked) {
  JobTrace trace;
  trace.teams = {"a", "b"};
  trace.jobs = {Job(0, 10, 8, 0), Job(0, 10, 4, 1)};
  auto shares = ReadTeamShares("team,gpus\na,8\nb,16\nnobody,3\n", "f", trace);
  ASSERT_TRUE(shares);
  EXPECT_EQ(*shares, (TeamShares{8, 16}));
  EXPECT_FALSE(ReadTeamShares("team,gpus\na,8\n", "f", trace)) << "b has none";
  EXPECT_FALSE(ReadTeamShares("team,gpus\na,4\nb,16\n", "f", trace)) << "smaller than its gang";
  EXPECT_FALSE(ReadTeamShares("team,gpus\na,many\nb,16\n", "f", trace));
}

// Team 0 borrows all GPUs; then team 1 wants its own.
TEST(VirtualClusters, WhatIsATeamsOwnIsTakenBack) {
  JobTrace trace;
  trace.teams = {"a", "b"};
  for (int i = 0; i < 4; ++i) trace.jobs.push_back(Job(i, 100'000, 8, 0));
  for (int i = 0; i < 2; ++i) trace.jobs.push_back(Job(5000 + i, 1000, 8, 1));
  trace.jobs.push_back(Job(200'000, 10, 8, 1));
  const TeamShares shares{16, 16};
  const EngineConfig cluster{.nodes = 4, .gpus_per_node = 8, .restore_us = 60 * kMicrosPerSecond};
  for (bool ours : {false, true}) {
    auto policy = ours ? MakeCorePolicy(trace, {}, shares) : MakeReclaimPolicy(trace, shares);
    ShareMeter meter(trace, shares, *policy);
    auto result = Engine::Run(trace, cluster, meter);
    ASSERT_TRUE(result);
    EXPECT_LT(result->jobs[4].end_us - trace.jobs[4].submit_us, 1200 * kMicrosPerSecond) << ours;
    EXPECT_LT(result->jobs[5].end_us - trace.jobs[5].submit_us, 1200 * kMicrosPerSecond) << ours;
    const auto teams = meter.Outcomes(*result);
    EXPECT_LT(teams[1].error_percent, 5);
    EXPECT_LT(teams[0].error_percent, 5);
    EXPECT_EQ(teams[0].jobs, 4);
    // The newest two of the borrowers had to leave. In a partition of two nodes two jobs would have waited all the
    // time.
    int32_t preemptions = 0;
    for (const JobRecord& job : result->jobs) preemptions += job.preemptions;
    EXPECT_EQ(preemptions, 2) << ours;
  }
}

TEST(VirtualClusters, NobodyIsServedBelowItsOwnUnmeasured) {
  // First in, first out: team 1 waits behind team 0 although the GPUs are its own.
  JobTrace trace;
  trace.teams = {"a", "b"};
  trace.jobs = {Job(0, 100'000, 16, 0), Job(10, 100'000, 8, 1), Job(150'000, 1, 1, 0)};
  const TeamShares shares{16, 8};
  auto fifo = MakeBaseline("fifo");
  ASSERT_TRUE(fifo);
  ShareMeter meter(trace, shares, **fifo);
  auto result = Engine::Run(trace, {.nodes = 2, .gpus_per_node = 8}, meter);
  ASSERT_TRUE(result);
  const auto teams = meter.Outcomes(*result);
  EXPECT_NEAR(teams[1].error_percent, 100.0 * 99'990 / 149'990, 0.1);
  EXPECT_EQ(teams[0].error_percent, 0);
}

TEST(VirtualClusters, AStaticPartitionLetsNobodyBorrow) {
  StudyOptions options;
  options.trace_text =
      "timestamp,duration,num_gpus,gpu_time,cluster\n"
      "2017-10-01 00:00:00,500,8,4000,a\n"
      "2017-10-01 00:00:00,500,8,4000,a\n"
      "2017-10-01 00:00:10,10,1,10,b\n";
  options.trace_name = "t";
  options.teams_text = "team,gpus\na,8\nb,8\n";
  options.teams_name = "teams";
  options.cluster.nodes = 2;
  options.policies = {"static", "vrun", "kai"};
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  ASSERT_EQ(study->jobs.size(), 3u);
  EXPECT_GE(study->jobs[0].teams[0].avg_wait_s, 250) << "one after the other";
  EXPECT_EQ(study->jobs[2].teams[0].jobs, 2);
  EXPECT_LT(study->jobs[1].teams[0].avg_wait_s, 100);
  options.teams_text.clear();
  EXPECT_FALSE(RunStudy(options)) << "static needs to know what is whose";
}

}  // namespace
}  // namespace vrun::sim
