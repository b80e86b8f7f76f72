// SPDX-License-Identifier: Apache-2.0
// Differences of the Slurm model from EASY, on traces that can be computed by hand. Wall times are whole minutes plus
// one: 100 s become 180, 50 s become 120.
#include "sim/policies/slurm_policy.h"

#include <gtest/gtest.h>

#include "sim/policies/baselines.h"
#include "sim/testing/test_traces.h"

namespace vrun::sim {
namespace {

using Times = std::vector<int64_t>;
const EngineConfig kOneNode{.nodes = 1, .gpus_per_node = 8};

Times Starts(const JobTrace& trace, const EngineConfig& config, std::unique_ptr<Policy> policy) {
  auto result = Engine::Run(trace, config, *policy);
  EXPECT_TRUE(result) << result.error().message();
  Times out;
  for (const JobRecord& job : result->jobs) out.push_back(job.first_start_us / kMicrosPerSecond);
  return out;
}
Times Slurm(const JobTrace& trace, const SlurmParameters& parameters = {}, const EngineConfig& config = kOneNode) {
  return Starts(trace, config, MakeSlurmPolicy(parameters));
}
Times Easy(const JobTrace& trace) { return Starts(trace, kOneNode, *MakeBaseline("easy")); }

TEST(SlurmPolicy, BackfillsAtItsIntervalOnly) {
  // The head of 8 waits for the end of the first job's wall time, 180. 30 + 120 is before that.
  const JobTrace trace = MakeTrace({{0, 100, 6}, {1, 50, 8}, {2, 50, 2}});
  EXPECT_EQ(Slurm(trace), (Times{0, 100, 30}));
  EXPECT_EQ(Slurm(trace, {.interval_s = 45}), (Times{0, 100, 45}));
  EXPECT_EQ(Easy(trace), (Times{0, 100, 2}));
}

TEST(SlurmPolicy, KnowsWallTimesNotDurations) {
  // A job of 68 s would end before the first job does, but its wall time, from 30 on, would not.
  const JobTrace trace = MakeTrace({{0, 100, 6}, {1, 50, 8}, {2, 68, 2}});
  EXPECT_EQ(Easy(trace), (Times{0, 100, 2}));
  EXPECT_EQ(Slurm(trace), (Times{0, 100, 150}));
}

TEST(SlurmPolicy, AReservationTakesWholeNodes) {
  // Beside the head of 4 there is room for the long job of 2. EASY uses it.
  const JobTrace trace = MakeTrace({{0, 100, 6}, {1, 50, 4}, {2, 5000, 2}});
  EXPECT_EQ(Easy(trace), (Times{0, 100, 2}));
  EXPECT_EQ(Slurm(trace), (Times{0, 100, 100}));
}

TEST(SlurmPolicy, ReservesInOrderAndFillsBetween) {
  // The head of 16 waits for the end of the long job's wall time. The job of 8 fits before that, but the next job fits
  // beside neither.
  const EngineConfig two_nodes{.nodes = 2, .gpus_per_node = 8};
  const JobTrace trace = MakeTrace({{0, 1000, 8}, {0, 100, 6}, {1, 500, 16}, {2, 300, 8}, {3, 200, 2}});
  EXPECT_EQ(Slurm(trace, {}, two_nodes), (Times{0, 0, 1000, 120, 420}));
}

TEST(SlurmPolicy, ParametersInSlurmsOwnWords) {
  auto parameters = ParseSlurmParameters("bf_interval=60,bf_window=4320,default_queue_depth=7");
  ASSERT_TRUE(parameters);
  EXPECT_EQ(parameters->interval_s, 60);
  EXPECT_EQ(parameters->window_min, 4320);
  EXPECT_EQ(parameters->queue_depth, 7);
  EXPECT_EQ(parameters->resolution_s, SlurmParameters{}.resolution_s);
  for (const char* bad : {"bf_intervall=3", "bf_interval", "bf_interval=", "bf_interval=0", "bf_interval=-1",
                          "bf_interval=1e9", "=", ",", "bf_window=99999999999999999999"}) {
    EXPECT_FALSE(ParseSlurmParameters(bad)) << bad;
  }
}

}  // namespace
}  // namespace vrun::sim
