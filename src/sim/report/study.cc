// SPDX-License-Identifier: Apache-2.0
#include "sim/report/study.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/escape.h"
#include "sched/share/weights.h"
#include "sim/policies/baselines.h"
#include "sim/policies/core_policy.h"

namespace vrun::sim {
namespace {

constexpr double kSecondsPerDay = 86400;
constexpr int32_t kMostNodes = 1'000'000;
constexpr int32_t kMostPerNode = 1024;
constexpr std::string_view kDefaultPodPolicy = kCorePods.name;

double Seconds(int64_t us) { return static_cast<double>(us) / kMicrosPerSecond; }

// Returns microseconds on the trace's clock.
Result<int64_t> ParseMoment(const std::string& text, const JobTrace& trace) {
  if (text.find('-') != text.npos) {
    VRUN_ASSIGN(int64_t date, ParseDate(text));
    if (trace.origin_us == 0) return Error(Code::kInvalid, Escape(text) + ": the trace has no dates: write seconds");
    return date - trace.origin_us;
  }
  int64_t seconds = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || seconds < 0 || seconds > 4'000'000'000) {
    return Error(Code::kInvalid, Escape(text) + ": not a time: write seconds or YYYY-MM-DD");
  }
  return seconds * kMicrosPerSecond;
}

Result<std::unique_ptr<Policy>> MakePolicy(const StudyOptions& options, const std::string& name, const JobTrace& trace,
                                           const TeamShares& shares) {
  if (auto file = options.weight_files.find(name); file != options.weight_files.end()) {
    VRUN_ASSIGN(sched::core::Policy weights, sched::core::ParseWeights(file->second, name));
    return MakeCorePolicy(trace, weights, shares);
  }
  if (name == kCorePolicy.name) return MakeCorePolicy(trace, {}, shares);
  if (name == kReclaimPolicy.name && !shares.empty()) return MakeReclaimPolicy(trace, shares);
  if (name == kReclaimPolicy.name || name == kStaticPolicy.name) {
    return Error(Code::kInvalid, name + ": the teams' own GPUs are not known: give --teams");
  }
  if (name == "slurm") return MakeSlurmPolicy(options.slurm);
  return MakeBaseline(name);
}

// Replays each team separately, on as many nodes as its GPUs fill.
Result<RunResult> RunPartitioned(const JobTrace& trace, const EngineConfig& cluster, const TeamShares& shares,
                                 std::vector<TeamOutcome>* teams) {
  RunResult all;
  all.jobs.resize(trace.jobs.size());
  for (size_t t = 0; t < shares.size(); ++t) {
    JobTrace own;
    own.teams = trace.teams;
    std::vector<size_t> from;
    for (size_t i = 0; i < trace.jobs.size(); ++i) {
      if (trace.jobs[i].team != static_cast<int32_t>(t)) continue;
      own.jobs.push_back(trace.jobs[i]);
      from.push_back(i);
    }
    TeamOutcome outcome{trace.teams[t], shares[t]};
    if (!own.jobs.empty()) {
      EngineConfig config = cluster;
      config.nodes = static_cast<int32_t>((shares[t] + cluster.gpus_per_node - 1) / cluster.gpus_per_node);
      auto policy = MakeCorePolicy(own, {});
      ShareMeter meter(own, shares, *policy);
      VRUN_ASSIGN(RunResult result, Engine::Run(own, config, meter));
      outcome = meter.Outcomes(result)[t];
      for (size_t i = 0; i < from.size(); ++i) all.jobs[from[i]] = result.jobs[i];
      all.capacity += result.capacity;
      all.passes += result.passes;
      all.end_us = std::max(all.end_us, result.end_us);
    }
    teams->push_back(std::move(outcome));
  }
  return all;
}

Result<JobOutcome> RunJobs(const StudyOptions& options, const JobTrace& trace, const std::string& policy) {
  JobOutcome outcome;
  outcome.policy = policy;
  const BaselineInfo* baseline = FindBaseline(policy);
  EngineConfig config = options.cluster;
  config.free_moves =
      !options.exact && baseline != nullptr && baseline->moves_freely && !config.HasFaults() && !config.HasStragglers();
  outcome.free_moves = config.free_moves;
  TeamShares shares;
  if (!options.teams_text.empty()) {
    VRUN_ASSIGN(shares, ReadTeamShares(options.teams_text, options.teams_name, trace));
  }
  const int64_t span = trace.jobs.back().submit_us;
  SizeSamples sizes;
  for (int32_t i = 0; i < options.shifts; ++i) {
    const JobTrace shifted = ShiftArrivals(trace, span / options.shifts * i);
    config.seed = options.cluster.seed + static_cast<uint64_t>(i);
    RunResult result;
    if (policy == kStaticPolicy.name && !shares.empty()) {
      std::vector<TeamOutcome> teams;
      VRUN_ASSIGN(result, RunPartitioned(shifted, config, shares, &teams));
      if (i == 0) outcome.teams = std::move(teams);
    } else {
      VRUN_ASSIGN(std::unique_ptr<Policy> object, MakePolicy(options, policy, shifted, shares));
      const bool first = i == 0;
      std::optional<Recorder> recorder;
      std::optional<ShareMeter> meter;
      Policy* outermost = object.get();
      if (first && options.curves) outermost = &recorder.emplace(shifted, *outermost);
      if (first && !shares.empty()) outermost = &meter.emplace(shifted, shares, *outermost);
      VRUN_ASSIGN(result, Engine::Run(shifted, config, *outermost));
      if (recorder) outcome.curves = recorder->Read(result);
      if (meter) outcome.teams = meter->Outcomes(result);
    }
    outcome.runs.push_back(Measure(shifted, result));
    if (!options.prices.empty()) MeasureCosts(shifted, result, options.prices, &outcome.runs.back());
    sizes.Add(shifted, result);
    if (i == 0) Describe(shifted, result, options.prices, &outcome);
  }
  outcome.sizes = sizes.Classes();
  outcome.summary = Summarize(outcome.runs);
  return outcome;
}

Result<Study> StudyJobs(const StudyOptions& options, const Csv& csv) {
  VRUN_ASSIGN(JobTrace trace, ReadJobTrace(csv));
  if (options.from || options.until) {
    int64_t from = 0, until = std::numeric_limits<int64_t>::max();
    if (options.from) {
      VRUN_ASSIGN(from, ParseMoment(*options.from, trace));
    }
    if (options.until) {
      VRUN_ASSIGN(until, ParseMoment(*options.until, trace));
    }
    trace = Window(trace, from, until);
    if (trace.jobs.empty()) return Error(Code::kInvalid, "no job was submitted in that window: widen it");
  }
  Study study;
  study.arrivals = static_cast<int64_t>(trace.jobs.size());
  study.without_gpus = trace.without_gpus;
  study.cluster = options.cluster;
  study.has_deadlines =
      std::any_of(trace.jobs.begin(), trace.jobs.end(), [](const TraceJob& j) { return !j.deadlines.empty(); });
  study.nodes = options.cluster.nodes;
  study.gpus = study.nodes * options.cluster.gpus_per_node;
  const double span = Seconds(trace.jobs.back().submit_us);
  study.span_days = span / kSecondsPerDay;
  double asked = 0;
  for (const TraceJob& job : trace.jobs) asked += Seconds(job.duration_us) * job.gpus;
  if (span > 0) study.offered_load = asked / (span * static_cast<double>(study.gpus));
  std::vector<std::string> policies = options.policies;
  if (policies.empty()) policies.emplace_back(kCorePolicy.name);
  for (const std::string& policy : policies) {
    VRUN_ASSIGN(JobOutcome outcome, RunJobs(options, trace, policy));
    study.jobs.push_back(std::move(outcome));
  }
  return study;
}

PodOutcome SummarizeFills(const std::string& policy, const std::vector<FillResult>& runs) {
  PodOutcome out;
  out.policy = policy;
  std::vector<double> allocation, fragmentation, idle, moved;
  for (const FillResult& run : runs) {
    allocation.push_back(run.allocation_percent);
    fragmentation.push_back(run.fragmentation_percent);
    idle.push_back(run.fragmentation_idle_percent);
    moved.push_back(run.moved_percent);
  }
  const Estimate allocated = EstimateOf(allocation), fragmented = EstimateOf(fragmentation);
  out.allocation_percent = allocated.mean;
  out.allocation_half_width = allocated.half_width;
  out.fragmentation_percent = fragmented.mean;
  out.fragmentation_half_width = fragmented.half_width;
  out.fragmentation_idle_percent = EstimateOf(idle).mean;
  out.moved_percent = EstimateOf(moved).mean;
  for (const FillPoint& point : runs.front().curve) {
    out.allocation.x.push_back(point.arrived_percent);
    out.allocation.y.push_back(point.allocation_percent);
    out.fragmentation.x.push_back(point.arrived_percent);
    out.fragmentation.y.push_back(point.fragmentation_percent);
  }
  return out;
}

Result<Study> StudyPods(const StudyOptions& options, const Csv& csv) {
  if (options.nodes_text.empty()) return Error(Code::kInvalid, "a table of pods needs its nodes: give --nodes-file");
  VRUN_ASSIGN(Csv nodes_csv, Csv::Parse(options.nodes_text, options.nodes_name));
  ModelNames models;
  VRUN_ASSIGN(std::vector<PodNode> nodes, ReadPodNodes(nodes_csv, &models));
  VRUN_ASSIGN(std::vector<Pod> pods, ReadPods(csv, &models));
  const FragmentationModel model(pods);
  Study study;
  study.arrivals = static_cast<int64_t>(pods.size());
  study.nodes = static_cast<int64_t>(nodes.size());
  for (const PodNode& node : nodes) study.gpus += node.gpus;
  study.offered_load = options.fill;
  std::vector<std::string> policies = options.policies;
  if (policies.empty()) policies.emplace_back(kDefaultPodPolicy);
  for (const std::string& name : policies) {
    std::vector<FillResult> runs;
    for (int32_t i = 0; i < options.shifts; ++i) {
      const FillConfig config{.fill = options.fill, .seed = 42 + static_cast<uint64_t>(i)};
      VRUN_ASSIGN(std::unique_ptr<PodScheduler> scheduler, MakePodScheduler(name, pods, models, model));
      VRUN_ASSIGN(FillResult result, FillCluster(nodes, pods, scheduler.get(), model, config));
      runs.push_back(std::move(result));
    }
    study.pods.push_back(SummarizeFills(name, runs));
    for (const PodNode& node : nodes) {
      if (node.gpus > 0)
        study.pods.back().cost_per_hour += node.gpus * options.prices.Of(models.names[static_cast<size_t>(node.model)]);
    }
    for (const auto& [gpu, milli] : runs.front().allocated_milli) {
      study.pods.back().allocated_cost_per_hour +=
          static_cast<double>(milli) / kMilliPerGpu * options.prices.Of(models.names[static_cast<size_t>(gpu)]);
    }
  }
  return study;
}

}  // namespace

Result<Study> RunStudy(const StudyOptions& options) {
  if (options.shifts < 1) return Error(Code::kInvalid, "at least one shift is needed");
  VRUN_ASSIGN(Csv csv, Csv::Parse(options.trace_text, options.trace_name));
  auto study = IsPodTable(csv) ? StudyPods(options, csv) : StudyJobs(options, csv);
  if (!study) return study;
  study->trace_name = options.trace_name;
  study->shifts = options.shifts;
  study->has_prices = !options.prices.empty();
  return study;
}

bool IsWeightFile(std::string_view policy) { return policy.find_first_of("/.") != policy.npos; }

Status ParseNodes(std::string_view text, EngineConfig* cluster) {
  const size_t x = std::min(text.find('x'), text.size());
  int32_t nodes = 0, gpus = 0;
  auto a = std::from_chars(text.data(), text.data() + x, nodes);
  const char* rest = text.data() + std::min(x + 1, text.size());
  auto b = std::from_chars(rest, text.data() + text.size(), gpus);
  const bool fine = a.ec == std::errc{} && a.ptr == text.data() + x && b.ec == std::errc{} &&
                    b.ptr == text.data() + text.size() && nodes >= 1 && nodes <= kMostNodes && gpus >= 1 &&
                    gpus <= kMostPerNode;
  if (!fine) return Error(Code::kInvalid, Escape(text) + ": not a cluster: write nodes x GPUs of each, as in 64x8");
  cluster->nodes = nodes;
  cluster->gpus_per_node = gpus;
  return {};
}

}  // namespace vrun::sim
