// SPDX-License-Identifier: Apache-2.0
#include "sim/report/outcome.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace vrun::sim {
namespace {

constexpr double kSecondsPerHour = 3600;

double Seconds(int64_t us) { return static_cast<double>(us) / kMicrosPerSecond; }

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double p) {
    return values[std::min(values.size() - 1, static_cast<size_t>(p * static_cast<double>(values.size())))];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), at(0.25), at(0.50), at(0.75), at(0.95)};
}

double PriceOf(const JobTrace& trace, const TraceJob& job, const Prices& prices) {
  return job.gpu_type < 0 ? prices.other : prices.Of(trace.gpu_types[static_cast<size_t>(job.gpu_type)]);
}

std::vector<TeamUsage> UsageOf(const JobTrace& trace, const RunResult& result, const Prices& prices) {
  std::vector<TeamUsage> out;
  for (const std::string& team : trace.teams) out.push_back({team});
  std::vector<std::vector<double>> waits(out.size());
  for (size_t i = 0; i < trace.jobs.size() && !out.empty(); ++i) {
    const TraceJob& job = trace.jobs[i];
    const double hours = Seconds(result.jobs[i].held_us) * job.gpus / kSecondsPerHour;
    TeamUsage& usage = out[static_cast<size_t>(job.team)];
    ++usage.jobs;
    usage.gpu_hours += hours;
    usage.cost += hours * PriceOf(trace, job, prices);
    waits[static_cast<size_t>(job.team)].push_back(Seconds(result.jobs[i].end_us - job.submit_us - job.duration_us));
  }
  for (size_t t = 0; t < out.size(); ++t) {
    std::sort(waits[t].begin(), waits[t].end());
    const auto at = [&](double p) { return static_cast<size_t>(p * static_cast<double>(waits[t].size())); };
    if (waits[t].empty()) continue;
    out[t].p50_wait_s = waits[t][at(0.50)];
    out[t].p90_wait_s = waits[t][at(0.90)];
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const TeamUsage& a, const TeamUsage& b) { return a.gpu_hours > b.gpu_hours; });
  return out;
}

}  // namespace

void Describe(const JobTrace& trace, const RunResult& result, const Prices& prices, JobOutcome* outcome) {
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    outcome->completions.push_back(Seconds(result.jobs[i].end_us - job.submit_us));
    outcome->waits.push_back(Seconds(result.jobs[i].end_us - job.submit_us - job.duration_us));
  }
  std::sort(outcome->completions.begin(), outcome->completions.end());
  std::sort(outcome->waits.begin(), outcome->waits.end());
  outcome->usage = UsageOf(trace, result, prices);
}

void SizeSamples::Add(const JobTrace& trace, const RunResult& result) {
  ++replays_;
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    // 0: one GPU, 1: two, 2: three and four, and so on.
    const auto k = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(job.gpus, 1) - 1)));
    Class& samples = classes_[std::min(k, classes_.size() - 1)];
    samples.completions.push_back(Seconds(result.jobs[i].end_us - job.submit_us));
    samples.waits.push_back(Seconds(result.jobs[i].end_us - job.submit_us - job.duration_us));
  }
}

std::vector<SizeClass> SizeSamples::Classes() const {
  std::vector<SizeClass> out;
  for (size_t k = 0; k < classes_.size(); ++k) {
    const Class& samples = classes_[k];
    if (samples.waits.empty()) continue;
    const int least = k == 0 ? 1 : (1 << (k - 1)) + 1, most = 1 << k;
    std::string gpus = std::to_string(least);
    if (k + 1 == classes_.size()) {
      gpus += "+";
    } else if (most > least) {
      gpus += "-" + std::to_string(most);
    }
    out.push_back({gpus, static_cast<int64_t>(samples.waits.size()) / replays_, SpreadOf(samples.waits),
                   SpreadOf(samples.completions)});
  }
  return out;
}

void MeasureCosts(const JobTrace& trace, const RunResult& result, const Prices& prices, Metrics* metrics) {
  double held_hours = 0, held = 0;
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    const double price = PriceOf(trace, job, prices);
    const double hours = Seconds(result.jobs[i].held_us) * job.gpus / kSecondsPerHour;
    const double lost = Seconds(result.jobs[i].lost_us) * job.gpus / kSecondsPerHour;
    held_hours += hours;
    held += hours * price;
    metrics->cost_of_lost_work += lost * price;
  }
  metrics->cost_of_work = held - metrics->cost_of_lost_work;
  const double all_hours = metrics->makespan_s * static_cast<double>(result.capacity) / kSecondsPerHour;
  metrics->cost_of_idle = held_hours > 0 ? (all_hours - held_hours) * held / held_hours : 0;
}

}  // namespace vrun::sim
