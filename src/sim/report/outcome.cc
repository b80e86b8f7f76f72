// SPDX-License-Identifier: Apache-2.0
#include "sim/report/outcome.h"

#include <algorithm>
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

std::vector<SizeClass> SizesOf(const JobTrace& trace, const RunResult& result) {
  struct Bin {
    const char* name;
    int32_t most;
    std::vector<double> waits, completions;
  };
  Bin bins[] = {{"1", 1, {}, {}},      {"2-4", 4, {}, {}},    {"5-8", 8, {}, {}},      {"9-16", 16, {}, {}},
                {"17-32", 32, {}, {}}, {"33-64", 64, {}, {}}, {"65+", 1 << 30, {}, {}}};
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& job = trace.jobs[i];
    Bin& bin = *std::find_if(std::begin(bins), std::end(bins), [&](const Bin& b) { return job.gpus <= b.most; });
    bin.completions.push_back(Seconds(result.jobs[i].end_us - job.submit_us));
    bin.waits.push_back(Seconds(result.jobs[i].end_us - job.submit_us - job.duration_us));
  }
  std::vector<SizeClass> out;
  for (Bin& bin : bins) {
    if (bin.waits.empty()) continue;
    out.push_back({bin.name, static_cast<int64_t>(bin.waits.size()), SpreadOf(bin.waits), SpreadOf(bin.completions)});
  }
  return out;
}

double PriceOf(const JobTrace& trace, const TraceJob& job, const Prices& prices) {
  return job.gpu_type < 0 ? prices.other : prices.Of(trace.gpu_types[static_cast<size_t>(job.gpu_type)]);
}

std::vector<TeamUsage> UsageOf(const JobTrace& trace, const RunResult& result, const Prices& prices) {
  std::vector<TeamUsage> out;
  for (const std::string& team : trace.teams) out.push_back({team, 0, 0, 0});
  for (size_t i = 0; i < trace.jobs.size() && !out.empty(); ++i) {
    const TraceJob& job = trace.jobs[i];
    const double hours = Seconds(result.jobs[i].held_us) * job.gpus / kSecondsPerHour;
    TeamUsage& usage = out[static_cast<size_t>(job.team)];
    ++usage.jobs;
    usage.gpu_hours += hours;
    usage.cost += hours * PriceOf(trace, job, prices);
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
  outcome->sizes = SizesOf(trace, result);
  outcome->usage = UsageOf(trace, result, prices);
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
