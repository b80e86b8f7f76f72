// SPDX-License-Identifier: Apache-2.0
#include "sim/report/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace vrun::sim {
namespace {

double Seconds(int64_t us) { return static_cast<double>(us) / kMicrosPerSecond; }

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of sorted values.
double Percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const size_t at = static_cast<size_t>(p * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

// Student's t, two-sided 95 %, for n - 1 degrees of freedom.
double StudentT(size_t degrees) {
  constexpr double kTable[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  return degrees < std::size(kTable) ? kTable[degrees] : 1.96 + 2.5 / static_cast<double>(degrees);
}

void MeasureDeadlines(const JobTrace& trace, const RunResult& result, Metrics* metrics) {
  int64_t with = 0, met = 0;
  double value = 0, best = 0;
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    if (job.deadlines.empty()) continue;
    ++with;
    const int64_t took = result.jobs[i].end_us - job.submit_us;
    met += took <= job.deadlines.back().after_us;
    int64_t most = 0, got = 0;
    for (const Deadline& deadline : job.deadlines) {
      most = std::max(most, deadline.value);
      if (took <= deadline.after_us) got = std::max(got, deadline.value);
    }
    value += static_cast<double>(got);
    best += static_cast<double>(most);
  }
  metrics->deadlines_met_percent = with == 0 ? 100 : 100.0 * static_cast<double>(met) / static_cast<double>(with);
  metrics->deadline_value_percent = best == 0 ? 100 : 100 * value / best;
}

}  // namespace

const std::vector<NamedMetric>& AllMetrics() {
  static const std::vector<NamedMetric> kAll = {
      {"avg_completion_s", &Metrics::avg_completion_s, 1},
      {"p50_completion_s", &Metrics::p50_completion_s, 1},
      {"p95_completion_s", &Metrics::p95_completion_s, 1},
      {"p99_completion_s", &Metrics::p99_completion_s, 1},
      {"avg_wait_s", &Metrics::avg_wait_s, 1},
      {"p50_wait_s", &Metrics::p50_wait_s, 1},
      {"p90_wait_s", &Metrics::p90_wait_s, 1},
      {"p95_wait_s", &Metrics::p95_wait_s, 1},
      {"p99_wait_s", &Metrics::p99_wait_s, 1},
      {"max_wait_s", &Metrics::max_wait_s, 1},
      {"wait_large_gangs_s", &Metrics::wait_large_gangs_s, 1},
      {"utilization", &Metrics::utilization, 4},
      {"gpu_hours", &Metrics::gpu_hours, 4},
      {"makespan_s", &Metrics::makespan_s, 1},
      {"preemptions", &Metrics::preemptions, 0},
      {"restarts", &Metrics::restarts, 0},
      {"lost_work_percent", &Metrics::lost_work_percent, 3},
      {"deadlines_met_percent", &Metrics::deadlines_met_percent, 2},
      {"deadline_value_percent", &Metrics::deadline_value_percent, 2},
  };
  return kAll;
}

const std::vector<NamedMetric>& CostMetrics() {
  static const std::vector<NamedMetric> kCosts = {
      {"cost_of_work", &Metrics::cost_of_work, 2},
      {"cost_of_lost_work", &Metrics::cost_of_lost_work, 2},
      {"cost_of_idle", &Metrics::cost_of_idle, 2},
  };
  return kCosts;
}

Metrics Measure(const JobTrace& trace, const RunResult& result) {
  std::vector<double> completion, wait, large;
  double worked = 0, held = 0, lost = 0;
  Metrics metrics;
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    const JobRecord& record = result.jobs[i];
    completion.push_back(Seconds(record.end_us - job.submit_us));
    wait.push_back(Seconds(record.end_us - job.submit_us - job.duration_us));
    if (job.gpus > kLargeGangGpus) large.push_back(wait.back());
    worked += Seconds(job.duration_us) * job.gpus;
    held += Seconds(record.held_us) * job.gpus;
    lost += Seconds(record.lost_us) * job.gpus;
    metrics.preemptions += record.preemptions;
    metrics.restarts += record.failures;
  }
  std::sort(completion.begin(), completion.end());
  std::sort(wait.begin(), wait.end());
  metrics.avg_completion_s = Mean(completion);
  metrics.p50_completion_s = Percentile(completion, 0.50);
  metrics.p95_completion_s = Percentile(completion, 0.95);
  metrics.p99_completion_s = Percentile(completion, 0.99);
  metrics.avg_wait_s = Mean(wait);
  metrics.p50_wait_s = Percentile(wait, 0.50);
  metrics.p90_wait_s = Percentile(wait, 0.90);
  metrics.p95_wait_s = Percentile(wait, 0.95);
  metrics.p99_wait_s = Percentile(wait, 0.99);
  metrics.max_wait_s = wait.empty() ? 0 : wait.back();
  metrics.wait_large_gangs_s = Mean(large);
  metrics.makespan_s = trace.jobs.empty() ? 0 : Seconds(result.end_us - trace.jobs.front().submit_us);
  if (metrics.makespan_s > 0) {
    metrics.utilization = worked / (metrics.makespan_s * static_cast<double>(result.capacity));
  }
  metrics.gpu_hours = held / 3600;
  metrics.lost_work_percent = held > 0 ? 100 * lost / held : 0;
  MeasureDeadlines(trace, result, &metrics);
  return metrics;
}

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate out{Mean(values), 0};
  if (values.size() < 2) return out;
  double squares = 0;
  for (double v : values) squares += (v - out.mean) * (v - out.mean);
  const double n = static_cast<double>(values.size());
  out.half_width = StudentT(values.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return out;
}

Summary Summarize(const std::vector<Metrics>& runs) {
  Summary out;
  for (const std::vector<NamedMetric>* metrics : {&AllMetrics(), &CostMetrics()}) {
    for (const NamedMetric& metric : *metrics) {
      std::vector<double> values;
      for (const Metrics& run : runs) values.push_back(run.*metric.value);
      const Estimate estimate = EstimateOf(values);
      out.mean.*metric.value = estimate.mean;
      out.half_width.*metric.value = estimate.half_width;
    }
  }
  return out;
}

}  // namespace vrun::sim
