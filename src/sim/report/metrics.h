// SPDX-License-Identifier: Apache-2.0
// The metrics of a replay, as defined in the published and calibration tables:
//   completion  end - submission
//   wait        completion - duration: all time without lasting progress, before the first start or later
//   large gangs more than 8 GPUs
//   utilization GPU-seconds of durations worked off / (capacity x (last end - first submission))
//   lost work   GPU-seconds held without lasting progress / GPU-seconds held
// Percentile p of n sorted values is the one at index floor(p n).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/replay/engine.h"

namespace vrun::sim {

inline constexpr int32_t kLargeGangGpus = 8;

struct Metrics {
  double avg_completion_s = 0;
  double p50_completion_s = 0;
  double p95_completion_s = 0;
  double p99_completion_s = 0;
  double avg_wait_s = 0;
  double p50_wait_s = 0;
  double p90_wait_s = 0;
  double p95_wait_s = 0;
  double p99_wait_s = 0;
  double max_wait_s = 0;
  double wait_large_gangs_s = 0;  // average; 0 without such jobs
  double utilization = 0;         // 0..1
  double gpu_hours = 0;           // held, including lost work
  double makespan_s = 0;
  double preemptions = 0;
  double restarts = 0;  // of jobs whose nodes failed
  double lost_work_percent = 0;
  // With prices, in their currency: cost of GPU time of lasting work, of lost work, and of idle GPUs.
  double cost_of_work = 0;
  double cost_of_lost_work = 0;
  double cost_of_idle = 0;
  double deadlines_met_percent = 0;   // of the jobs with deadlines, by their last one; 100 without such jobs
  double deadline_value_percent = 0;  // of the highest value of all deadlines
};

struct NamedMetric {
  const char* name;
  double Metrics::*value;
  int decimals;
};
// In the order of reports, without the costs.
const std::vector<NamedMetric>& AllMetrics();
const std::vector<NamedMetric>& CostMetrics();

Metrics Measure(const JobTrace& trace, const RunResult& result);

// The average of runs and the half width of its 95 % confidence interval (Student's t; 0 for one run).
struct Estimate {
  double mean = 0;
  double half_width = 0;
};
Estimate EstimateOf(const std::vector<double>& values);

// The same for every metric.
struct Summary {
  Metrics mean;
  Metrics half_width;
};
Summary Summarize(const std::vector<Metrics>& runs);

}  // namespace vrun::sim
