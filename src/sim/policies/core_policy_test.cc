// SPDX-License-Identifier: Apache-2.0
// The core of src/sched under the simulator's executor. The engine aborts when the core places a job on GPUs that are
// not free.
#include "sim/policies/core_policy.h"

#include <gtest/gtest.h>

#include <random>

#include "sim/policies/baselines.h"
#include "sim/report/metrics.h"
#include "sim/testing/test_traces.h"

namespace vrun::sim {
namespace {

RunResult RunCore(const JobTrace& trace, const EngineConfig& config) {
  auto policy = MakeCorePolicy(trace, {});
  auto result = Engine::Run(trace, config, *policy);
  EXPECT_TRUE(result) << result.error().message();
  return result ? *result : RunResult{};
}

TEST(CorePolicy, AccountsForEveryGpuSecondAndRepeats) {
  for (int64_t save_us : {int64_t{0}, int64_t{30'000'000}}) {
    const JobTrace trace = RandomTrace(5, 300);
    const EngineConfig config{.nodes = 5, .save_us = save_us, .restore_us = 60'000'000};
    const RunResult result = RunCore(trace, config);
    const RunResult again = RunCore(trace, config);
    ASSERT_EQ(result.jobs.size(), trace.jobs.size());
    for (size_t i = 0; i < trace.jobs.size(); ++i) {
      EXPECT_EQ(result.jobs[i].state, JobState::kDone);
      EXPECT_EQ(result.jobs[i].held_us - result.jobs[i].lost_us, trace.jobs[i].duration_us) << "job " << i;
      EXPECT_EQ(result.jobs[i].end_us, again.jobs[i].end_us) << "job " << i;
    }
  }
}

TEST(CorePolicy, NothingWaitsOnAClusterThatIsLargeEnough) {
  const JobTrace trace = RandomTrace(3, 200);
  const Metrics metrics = Measure(trace, RunCore(trace, {.nodes = 2000}));
  EXPECT_EQ(metrics.max_wait_s, 0);
  EXPECT_EQ(metrics.preemptions, 0);
}

// docs/decisions/0034
TEST(CorePolicy, UnderOverloadItMeetsAtLeastAsManyDeadlinesAsAnOrderThatIsBlindToThem) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    JobTrace trace = RandomTrace(seed, 1200);
    std::mt19937 random(seed);
    for (TraceJob& job : trace.jobs) {
      job.deadlines = {{job.duration_us / 100 * static_cast<int64_t>(110 + random() % 300), 1}};
    }
    const EngineConfig config{.nodes = 6, .restore_us = 30'000'000};
    const Metrics ours = Measure(trace, RunCore(trace, config));
    EngineConfig moves = config;
    moves.free_moves = true;
    auto blind = MakeBaseline("mlfq");
    ASSERT_TRUE(blind);
    auto result = Engine::Run(trace, moves, **blind);
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_GE(ours.deadlines_met_percent, Measure(trace, *result).deadlines_met_percent) << "seed " << seed;
  }
}

}  // namespace
}  // namespace vrun::sim
