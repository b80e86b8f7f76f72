// SPDX-License-Identifier: Apache-2.0
// The core of src/sched under the simulator's executor: the engine aborts when it places on what is not free.
#include "sim/core_policy.h"

#include <gtest/gtest.h>

#include "sim/metrics.h"
#include "sim/test_traces.h"

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

}  // namespace
}  // namespace vrun::sim
