// SPDX-License-Identifier: Apache-2.0
// Small traces with results that can be computed by hand, and relations that must hold for every trace.
#include "sim/replay/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/policies/baselines.h"
#include "sim/report/metrics.h"
#include "sim/testing/test_traces.h"

namespace vrun::sim {
namespace {

RunResult RunPolicy(const JobTrace& trace, const EngineConfig& config, const std::string& name) {
  auto policy = MakeBaseline(name);
  EXPECT_TRUE(policy) << policy.error().message();
  auto result = Engine::Run(trace, config, **policy);
  EXPECT_TRUE(result) << name << ": " << result.error().message();
  return result ? *result : RunResult{};
}

std::vector<int64_t> Ends(const RunResult& result) {
  std::vector<int64_t> out;
  for (const JobRecord& job : result.jobs) out.push_back(job.end_us / kMicrosPerSecond);
  return out;
}

using Times = std::vector<int64_t>;
const EngineConfig kOneNode{.nodes = 1, .gpus_per_node = 8};

TEST(GangNodes, PlacesByBestFitAndWholeNodes) {
  GangNodes nodes(3, 8);
  const Placement three = nodes.Find(3);
  nodes.Take(three);
  EXPECT_EQ(three, (Placement{{0, 3}}));
  EXPECT_EQ(nodes.Find(4), (Placement{{0, 4}}));           // the fullest with room
  EXPECT_EQ(nodes.Find(6), (Placement{{1, 6}}));           // not the first: it has 5
  EXPECT_EQ(nodes.Find(12), (Placement{{0, 4}, {1, 8}}));  // a whole node and the rest
  EXPECT_TRUE(nodes.Fits(21));
  EXPECT_FALSE(nodes.Fits(22));
  EXPECT_FALSE(nodes.Fits(24));
  nodes.Give(three);
  EXPECT_TRUE(nodes.Fits(24));
}

TEST(Engine, FifoHoldsUpWhatIsBehindTheHead) {
  const JobTrace trace = MakeTrace({{0, 100, 6}, {1, 100, 4}, {2, 10, 2}});
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "fifo")), (Times{100, 200, 110}));
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "greedy")), (Times{100, 200, 12}));
}

TEST(Engine, ShortestFirst) {
  const JobTrace trace = MakeTrace({{0, 100, 8}, {1, 50, 8}, {2, 10, 8}, {3, 20, 1}});
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "sjf")), (Times{100, 180, 110, 130}));
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "ssf")), (Times{100, 180, 130, 120}));
}

TEST(Engine, EasyFillsTheHoleOnlyWithWhatDoesNotDelayTheHead) {
  // The head (8 GPUs) can start at 100. A job of 2 GPUs that ends before may start first, one that ends later may not.
  EXPECT_EQ(Ends(RunPolicy(MakeTrace({{0, 100, 6}, {1, 50, 8}, {2, 98, 2}}), kOneNode, "easy")),
            (Times{100, 150, 100}));
  EXPECT_EQ(Ends(RunPolicy(MakeTrace({{0, 100, 6}, {1, 50, 8}, {2, 99, 2}}), kOneNode, "easy")),
            (Times{100, 150, 249}));
  // A head of 7 leaves one GPU at that time, so one long job on one GPU may start first, but not a second.
  EXPECT_EQ(Ends(RunPolicy(MakeTrace({{0, 100, 6}, {1, 50, 7}, {2, 500, 1}, {3, 500, 1}}), kOneNode, "easy")),
            (Times{100, 150, 502, 650}));
}

TEST(Engine, ShortestRemainingTimePreempts) {
  const JobTrace trace = MakeTrace({{0, 100, 8}, {10, 20, 8}});
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "srtf")), (Times{120, 30}));
  EngineConfig dear = kOneNode;
  dear.restore_us = 5 * kMicrosPerSecond;
  const RunResult result = RunPolicy(trace, dear, "srtf");
  EXPECT_EQ(Ends(result), (Times{125, 30}));
  EXPECT_EQ(result.jobs[0].preemptions, 1);
  EXPECT_EQ(result.jobs[0].lost_us, 5 * kMicrosPerSecond);
  EXPECT_EQ(result.jobs[0].held_us, 105 * kMicrosPerSecond);
}

TEST(Engine, SavingHoldsTheGpus) {
  EngineConfig config = kOneNode;
  config.save_us = 7 * kMicrosPerSecond;
  config.start_latency_us = 2 * kMicrosPerSecond;
  // Job 0 works from 2 to 10, saves until 17, and works again from 39 + 2 on for the other 92 s. Job 1 starts at 17 and
  // works from 19.
  const RunResult result = RunPolicy(MakeTrace({{0, 100, 8}, {10, 20, 8}}), config, "srtf");
  EXPECT_EQ(Ends(result), (Times{39 + 2 + 92, 39}));
  EXPECT_EQ(result.jobs[0].lost_us, (2 + 7 + 2) * kMicrosPerSecond);
}

TEST(Engine, MlfqDemotesByAttainedGpuTime) {
  // 8 GPUs: level 0 ends after 112.5 s. The second job arrives at level 0 and takes over then, not before.
  const RunResult result = RunPolicy(MakeTrace({{0, 1000, 8}, {10, 50, 8}}), kOneNode, "mlfq");
  EXPECT_EQ(result.jobs[1].first_start_us, 112'500'000);
  EXPECT_EQ(Ends(result), (Times{1050, 162}));
}

TEST(Engine, LasDemotesOnce) {
  // 8 GPUs: 3.25 GPU-hours end after 1462.5 s. Then the job with less goes first, and they never change places again.
  const RunResult result = RunPolicy(MakeTrace({{0, 3000, 8}, {10, 50, 8}}), kOneNode, "las");
  EXPECT_EQ(result.jobs[1].first_start_us, 1'462'500'000);
  EXPECT_EQ(Ends(result), (Times{3050, 1512}));
}

TEST(Engine, RemainingGpuTimeIsNotRemainingTime) {
  // The second job is longer than the rest of the first, but smaller.
  const JobTrace trace = MakeTrace({{0, 100, 8}, {10, 100, 4}});
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "srsf")), (Times{200, 110}));
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "srtf")), (Times{100, 200}));
}

TEST(Engine, TimeslicesGoRound) {
  EXPECT_EQ(Ends(RunPolicy(MakeTrace({{0, 5400, 8}, {1, 5400, 8}}), kOneNode, "timeslice")), (Times{9000, 10800}));
}

TEST(Engine, EarliestDeadlineFirst) {
  JobTrace trace = MakeTrace({{0, 100, 8}, {1, 50, 8}, {2, 50, 8}, {3, 50, 8}});
  trace.jobs[1].deadlines = {{1000 * kMicrosPerSecond, 1}};
  trace.jobs[2].deadlines = {{500 * kMicrosPerSecond, 1}};
  EXPECT_EQ(Ends(RunPolicy(trace, kOneNode, "edf")), (Times{100, 200, 150, 250}));
}

TEST(Engine, PaddedEstimatesBackfillOthers) {
  const JobTrace trace = RandomTrace(5, 300);
  const EngineConfig config{.nodes = 5};
  EXPECT_NE(Ends(RunPolicy(trace, config, "easy-padded")), Ends(RunPolicy(trace, config, "easy")));
}

TEST(Engine, AKillGoesBackToTheLastCheckpoint) {
  class KillOnce : public Policy {
   public:
    void Submitted(Engine&, JobIndex) override {}
    void Schedule(Engine& engine) override {
      if (engine.record(0).state == JobState::kWaiting) engine.Start(0);
      if (engine.now() < 25 * kMicrosPerSecond) return engine.WakeAt(25 * kMicrosPerSecond);
      if (engine.record(0).preemptions == 0) {
        engine.Preempt(0, Stop::kKill);
        engine.Start(0);
      }
    }
  };
  EngineConfig config = kOneNode;
  config.checkpoint_us = 10 * kMicrosPerSecond;
  KillOnce policy;
  auto result = Engine::Run(MakeTrace({{0, 100, 1}}), config, policy);
  ASSERT_TRUE(result);
  EXPECT_EQ(Ends(*result), (Times{105}));
  EXPECT_EQ(result->jobs[0].lost_us, 5 * kMicrosPerSecond);
}

TEST(Engine, SaysWhatCannotBe) {
  auto fifo = MakeBaseline("fifo");
  auto too_large = Engine::Run(MakeTrace({{0, 1, 9}}), kOneNode, **fifo);
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().message(), "the trace has a gang of 9 GPUs and the cluster 8: give it more nodes");
  class Lazy : public Policy {
    void Schedule(Engine&) override {}
  } lazy;
  auto stuck = Engine::Run(MakeTrace({{0, 1, 1}}), kOneNode, lazy);
  ASSERT_FALSE(stuck);
  EXPECT_EQ(stuck.error().code(), Code::kInternal);
  EXPECT_FALSE(MakeBaseline("borg"));
}

// Holds for every policy and trace: a job holds GPUs exactly for its work and what was lost, never more GPUs are held
// than exist, and the same replay gives the same result.
TEST(Engine, AccountsForEveryGpuSecond) {
  for (const BaselineInfo& baseline : Baselines()) {
    for (bool free_moves : {false, true}) {
      if (free_moves && (baseline.name.starts_with("easy") || baseline.name == "slurm")) continue;  // needs exact nodes
      const JobTrace trace = RandomTrace(7, 400);
      const EngineConfig config{.nodes = 5,
                                .gpus_per_node = 8,
                                .free_moves = free_moves,
                                .start_latency_us = 3'000'000,
                                .save_us = free_moves ? 0 : 11'000'000,
                                .restore_us = 20'000'000};
      const RunResult result = RunPolicy(trace, config, std::string(baseline.name));
      ASSERT_EQ(result.jobs.size(), trace.jobs.size()) << baseline.name;
      double held = 0;
      for (size_t i = 0; i < result.jobs.size(); ++i) {
        const JobRecord& job = result.jobs[i];
        EXPECT_EQ(job.state, JobState::kDone);
        EXPECT_EQ(job.held_us - job.lost_us, trace.jobs[i].duration_us) << baseline.name << " job " << i;
        EXPECT_GE(job.end_us, trace.jobs[i].submit_us + trace.jobs[i].duration_us);
        held += static_cast<double>(job.held_us) * trace.jobs[i].gpus;
      }
      EXPECT_LE(held, static_cast<double>(result.capacity) * static_cast<double>(result.end_us));
      EXPECT_EQ(Ends(result), Ends(RunPolicy(trace, config, std::string(baseline.name)))) << baseline.name;
    }
  }
}

// Makespan of strict FIFO: no anomaly is possible when no job overtakes and any free GPUs will do.
TEST(Engine, ALargerClusterIsNeverSlowerUnderFifo) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const JobTrace trace = RandomTrace(seed, 300);
    int64_t before = std::numeric_limits<int64_t>::max();
    for (int32_t nodes = 4; nodes <= 16; ++nodes) {
      const EngineConfig config{.nodes = nodes, .gpus_per_node = 8, .free_moves = true};
      const int64_t end = RunPolicy(trace, config, "fifo").end_us;
      EXPECT_LE(end, before) << "seed " << seed << ", " << nodes << " nodes";
      before = end;
    }
  }
}

TEST(Engine, NothingWaitsOnAClusterThatIsLargeEnough) {
  const JobTrace trace = RandomTrace(3, 200);
  const EngineConfig config{.nodes = 2000, .gpus_per_node = 8};
  for (const BaselineInfo& baseline : Baselines()) {
    const Metrics metrics = Measure(trace, RunPolicy(trace, config, std::string(baseline.name)));
    EXPECT_EQ(metrics.max_wait_s, 0) << baseline.name;
    EXPECT_EQ(metrics.preemptions, 0) << baseline.name;
  }
}

// A gang needs whole nodes while small jobs are scattered over them. Without free moves the small jobs are preempted
// and start again on the other node, and no job starves.
TEST(Engine, ScatteredJobsMakeRoomInPlace) {
  const EngineConfig config{.nodes = 2, .gpus_per_node = 4, .restore_us = 5 * kMicrosPerSecond};
  // The jobs of 3 GPUs go to different nodes; the short gang of 4 then needs one of the nodes for itself.
  const RunResult result = RunPolicy(MakeTrace({{0, 100, 3}, {0, 90, 3}, {10, 20, 4}}), config, "srtf");
  EXPECT_EQ(result.jobs[2].end_us, 30 * kMicrosPerSecond);
  EXPECT_EQ(result.jobs[0].preemptions + result.jobs[1].preemptions, 1);
  EXPECT_EQ(Ends(result), (Times{125, 90, 30}));
}

// More expensive preemption never makes the oracle's average better than free preemption.
TEST(Engine, PreemptionCostsShow) {
  const JobTrace trace = RandomTrace(11, 400);
  EngineConfig config{.nodes = 5, .gpus_per_node = 8, .free_moves = true};
  const double free_of_cost = Measure(trace, RunPolicy(trace, config, "srsf")).avg_completion_s;
  config.restore_us = 600 * kMicrosPerSecond;
  EXPECT_GT(Measure(trace, RunPolicy(trace, config, "srsf")).avg_completion_s, free_of_cost);
}

TEST(Metrics, OfAHandMadeResult) {
  JobTrace trace = MakeTrace({{0, 100, 6}, {0, 100, 16}, {10, 90, 2}});
  trace.jobs[0].deadlines = {{100 * kMicrosPerSecond, 10}};
  trace.jobs[1].deadlines = {{150 * kMicrosPerSecond, 8}, {250 * kMicrosPerSecond, 4}};
  trace.jobs[2].deadlines = {{90 * kMicrosPerSecond, 6}};
  const RunResult result = RunPolicy(trace, {.nodes = 2, .gpus_per_node = 8}, "fifo");
  EXPECT_EQ(Ends(result), (Times{100, 200, 290}));
  const Metrics m = Measure(trace, result);
  EXPECT_DOUBLE_EQ(m.avg_completion_s, (100 + 200 + 280) / 3.0);
  EXPECT_DOUBLE_EQ(m.avg_wait_s, (0 + 100 + 190) / 3.0);
  EXPECT_DOUBLE_EQ(m.wait_large_gangs_s, 100);
  EXPECT_DOUBLE_EQ(m.p50_wait_s, 100);
  EXPECT_DOUBLE_EQ(m.max_wait_s, 190);
  EXPECT_DOUBLE_EQ(m.utilization, (600 + 1600 + 180) / (16.0 * 290));
  EXPECT_DOUBLE_EQ(m.deadlines_met_percent, 200 / 3.0);
  EXPECT_DOUBLE_EQ(m.deadline_value_percent, 100 * 14 / 24.0);
}

TEST(Metrics, ConfidenceInterval) {
  std::vector<Metrics> runs(3);
  runs[0].avg_wait_s = 1;
  runs[1].avg_wait_s = 2;
  runs[2].avg_wait_s = 3;
  const Summary summary = Summarize(runs);
  EXPECT_DOUBLE_EQ(summary.mean.avg_wait_s, 2);
  EXPECT_NEAR(summary.half_width.avg_wait_s, 4.303 / std::sqrt(3.0), 1e-9);
}

}  // namespace
}  // namespace vrun::sim
