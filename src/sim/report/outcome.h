// SPDX-License-Identifier: Apache-2.0
// Results of one policy's replays of a gang trace, beyond the averages of metrics.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/policies/virtual_clusters.h"
#include "sim/report/metrics.h"
#include "sim/report/prices.h"
#include "sim/report/recorder.h"

namespace vrun::sim {

// Seconds.
struct Spread {
  double mean = 0;
  double p25 = 0;
  double p50 = 0;
  double p75 = 0;
  double p95 = 0;
};

// Jobs of similar size, in all replays.
struct SizeClass {
  std::string gpus;  // "1", "2", "3-4", "5-8", ..., "257+"
  int64_t jobs = 0;  // of one replay
  Spread wait;
  Spread completion;
};

// Collects them over the replays.
class SizeSamples {
 public:
  void Add(const JobTrace& trace, const RunResult& result);
  // Only classes with jobs.
  std::vector<SizeClass> Classes() const;

 private:
  struct Class {
    std::vector<double> waits, completions;
  };
  std::array<Class, 10> classes_;
  int32_t replays_ = 0;
};

struct TeamUsage {
  std::string team = {};
  int64_t jobs = 0;
  double gpu_hours = 0;  // held, including lost work
  double cost = 0;       // of these GPU-hours
  double p50_wait_s = 0;
  double p90_wait_s = 0;
};

struct JobOutcome {
  std::string policy;
  bool free_moves = false;
  int64_t arrivals = 0;  // jobs of a replay
  int64_t left_out = 0;  // that do not fit on any part of the cluster
  Summary summary;
  std::vector<Metrics> runs;
  std::vector<SizeClass> sizes;  // only classes with jobs
  // Of the first run:
  std::vector<double> waits;        // seconds, sorted
  std::vector<double> completions;  // seconds, sorted
  Curves curves;                    // with StudyOptions::curves
  std::vector<TeamUsage> usage;     // by team, the largest first; empty without teams
  std::vector<TeamOutcome> teams;   // with StudyOptions::teams_text
};

// Fills the parts that come from the records of the first run.
void Describe(const JobTrace& trace, const RunResult& result, const Prices& prices, JobOutcome* outcome);

// Sets the costs. A job's GPU type comes from the trace; idle GPUs cost the average of the used ones.
void MeasureCosts(const JobTrace& trace, const RunResult& result, const Prices& prices, Metrics* metrics);

}  // namespace vrun::sim
