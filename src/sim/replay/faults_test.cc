// SPDX-License-Identifier: Apache-2.0
// Failing nodes and slow nodes, under every policy.
#include <gtest/gtest.h>

#include <algorithm>

#include "sched/model/policy.h"
#include "sim/policies/baselines.h"
#include "sim/policies/core_policy.h"
#include "sim/replay/engine.h"
#include "sim/report/metrics.h"
#include "sim/testing/test_traces.h"

namespace vrun::sim {
namespace {

constexpr int64_t kSecond = kMicrosPerSecond;

RunResult RunPolicy(const JobTrace& trace, const EngineConfig& config, const std::string& name) {
  auto policy =
      name == kCorePolicy.name ? Result<std::unique_ptr<Policy>>(MakeCorePolicy(trace, {})) : MakeBaseline(name);
  EXPECT_TRUE(policy) << policy.error().message();
  auto result = Engine::Run(trace, config, **policy);
  EXPECT_TRUE(result) << name << ": " << result.error().message();
  return result ? *result : RunResult{};
}

std::vector<std::string> AllPolicies() {
  std::vector<std::string> out{std::string(kCorePolicy.name)};
  for (const BaselineInfo& baseline : Baselines()) out.emplace_back(baseline.name);
  return out;
}

TEST(Faults, AJobGoesBackToItsLastSaveAndWaitsForTheRepair) {
  const EngineConfig config{.nodes = 1,
                            .restore_us = 7 * kSecond,
                            .checkpoint_us = 1000 * kSecond,
                            .node_mtbf_us = 20'000 * kSecond,
                            .node_repair_us = 500 * kSecond};
  const RunResult result = RunPolicy(MakeTrace({{0, 100'000, 8}}), config, "fifo");
  const JobRecord& job = result.jobs[0];
  ASSERT_GT(job.failures, 0);
  EXPECT_EQ(job.preemptions, 0);
  EXPECT_EQ(job.end_us, (100'000 + 500 * job.failures) * kSecond + job.lost_us);
  // Each time it repeats less than a period, and restores.
  EXPECT_LT(job.lost_us, (1000 + 7) * job.failures * kSecond);
  EXPECT_GE(job.lost_us, 7 * kSecond * job.failures);
}

TEST(Faults, OftenAsItWasAskedFor) {
  const EngineConfig config{.nodes = 50, .node_mtbf_us = 100 * 3600 * kSecond, .node_repair_us = kSecond};
  const RunResult result = RunPolicy(MakeTrace({{0, 1000 * 3600, 1}}), config, "fifo");
  const double hours = static_cast<double>(result.end_us) / (3600.0 * kSecond);
  EXPECT_NEAR(static_cast<double>(result.node_failures), 50 * hours / 100, 75) << "500 expected, +-3 sigma";
}

TEST(Faults, EveryPolicyAccountsForEverySecond) {
  const JobTrace trace = RandomTrace(7, 300);
  for (int64_t save_s : {0, 40}) {
    const EngineConfig config{.nodes = 6,
                              .start_latency_us = 3 * kSecond,
                              .save_us = save_s * kSecond,
                              .restore_us = 20 * kSecond,
                              .checkpoint_us = 300 * kSecond,
                              .node_mtbf_us = 20'000 * kSecond,
                              .node_repair_us = 2000 * kSecond,
                              .slow_nodes_percent = 33,
                              .slow_percent = 150};
    for (const std::string& name : AllPolicies()) {
      const RunResult result = RunPolicy(trace, config, name);
      ASSERT_EQ(result.jobs.size(), trace.jobs.size()) << name;
      const Metrics metrics = Measure(trace, result);
      EXPECT_GT(metrics.restarts, 0) << name;
      for (size_t i = 0; i < result.jobs.size(); ++i) {
        const JobRecord& job = result.jobs[i];
        EXPECT_EQ(job.state, JobState::kDone) << name;
        EXPECT_NEAR(static_cast<double>(job.held_us - job.lost_us), static_cast<double>(trace.jobs[i].duration_us), 10)
            << name << " job " << i;
        EXPECT_GE(job.end_us, trace.jobs[i].submit_us + trace.jobs[i].duration_us);
      }
      EXPECT_EQ(result.end_us, RunPolicy(trace, config, name).end_us) << name << ": not the same twice";
    }
  }
}

TEST(Faults, AnotherSeedIsAnotherFate) {
  const JobTrace trace = RandomTrace(7, 200);
  EngineConfig config{.nodes = 6, .node_mtbf_us = 50'000 * kSecond, .node_repair_us = 2000 * kSecond};
  const RunResult one = RunPolicy(trace, config, "greedy");
  config.seed = 2;
  const RunResult other = RunPolicy(trace, config, "greedy");
  EXPECT_NE(one.end_us + one.node_failures, other.end_us + other.node_failures);
}

TEST(Stragglers, AGangIsAsSlowAsItsSlowestNode) {
  const EngineConfig config{.nodes = 2, .slow_nodes_percent = 50, .slow_percent = 150};
  const RunResult whole = RunPolicy(MakeTrace({{0, 100, 16}}), config, "fifo");
  EXPECT_EQ(whole.jobs[0].end_us, 150 * kSecond);
  EXPECT_EQ(whole.jobs[0].lost_us, 50 * kSecond);
  const RunResult halves = RunPolicy(MakeTrace({{0, 100, 8}, {0, 100, 8}}), config, "fifo");
  EXPECT_EQ(std::min(halves.jobs[0].end_us, halves.jobs[1].end_us), 100 * kSecond);
  EXPECT_EQ(std::max(halves.jobs[0].end_us, halves.jobs[1].end_us), 150 * kSecond);
}

}  // namespace
}  // namespace vrun::sim
