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
#include "sim/policies/team_terms.h"
#include "sim/replay/cluster_parts.h"

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

// The teams as one of the two kinds of tables says, or neither.
struct TeamTables {
  TeamShares shares;
  TeamTerms terms;
};

Result<TeamTables> ReadTeams(const std::string& text, const std::string& name, const JobTrace& trace) {
  TeamTables teams;
  if (text.empty()) return teams;
  if (IsTermsTable(text)) {
    VRUN_ASSIGN(teams.terms, ReadTeamTerms(text, name));
  } else {
    VRUN_ASSIGN(teams.shares, ReadTeamShares(text, name, trace));
  }
  return teams;
}

Result<std::unique_ptr<Policy>> MakePolicy(const StudyOptions& options, const std::string& name, const JobTrace& trace,
                                           const TeamTables& teams) {
  if (auto file = options.weight_files.find(name); file != options.weight_files.end()) {
    VRUN_ASSIGN(sched::core::Policy weights, sched::core::ParseWeights(file->second, name));
    return MakeCorePolicy(trace, weights, teams.shares, teams.terms);
  }
  if (name == kCorePolicy.name) return MakeCorePolicy(trace, {}, teams.shares, teams.terms);
  if (name == kReclaimPolicy.name && !teams.shares.empty()) return MakeReclaimPolicy(trace, teams.shares);
  if (name == kReclaimPolicy.name || name == kStaticPolicy.name) {
    return Error(Code::kInvalid, name + ": the teams' own GPUs are not known: give --teams with the columns team,gpus");
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

// Tells how much of all replays is done.
class ReplayProgress {
 public:
  ReplayProgress(std::function<void(double)> tell, size_t jobs)
      : tell_(std::move(tell)), jobs_(std::max<size_t>(jobs, 1)) {}

  // Before each run of the engine, of which `jobs` are all.
  std::function<void(size_t)> Next(size_t jobs) {
    if (!tell_) return {};
    const size_t before = before_;
    before_ += jobs;
    return [this, before](size_t ended) {
      tell_(std::min(1.0, static_cast<double>(before + ended) / static_cast<double>(jobs_)));
    };
  }

 private:
  const std::function<void(double)> tell_;
  const size_t jobs_;  // of all runs
  size_t before_ = 0;
};

// Replays each part of the cluster with the jobs that go there.
Result<RunResult> RunParts(const StudyOptions& options, const JobTrace& trace, const std::string& policy,
                           const EngineConfig& config, const ClusterParts& parts, const TeamTables& teams,
                           ReplayProgress* progress) {
  RunResult all;
  all.jobs.resize(trace.jobs.size());
  all.capacity = GpusOf(parts);
  for (size_t p = 0; p < parts.size(); ++p) {
    JobTrace own = trace;
    own.jobs.clear();
    std::vector<size_t> from;
    for (size_t i = 0; i < trace.jobs.size(); ++i) {
      if (PartFor(trace, trace.jobs[i], parts) != static_cast<int32_t>(p)) continue;
      own.jobs.push_back(trace.jobs[i]);
      from.push_back(i);
    }
    if (own.jobs.empty()) continue;
    EngineConfig part = config;
    part.nodes = parts[p].nodes;
    part.gpus_per_node = parts[p].gpus;
    part.progress = progress->Next(own.jobs.size());
    const TeamTables here{teams.shares, TermsIn(teams.terms, parts[p], parts)};
    VRUN_ASSIGN(std::unique_ptr<Policy> object, MakePolicy(options, policy, own, here));
    VRUN_ASSIGN(RunResult result, Engine::Run(own, part, *object));
    for (size_t i = 0; i < from.size(); ++i) all.jobs[from[i]] = std::move(result.jobs[i]);
    all.passes += result.passes;
    all.node_failures += result.node_failures;
    all.end_us = std::max(all.end_us, result.end_us);
  }
  return all;
}

Result<JobOutcome> RunJobs(const StudyOptions& options, const JobTrace& given, const std::string& policy,
                           const ClusterParts& parts, const std::string& teams_text, ReplayProgress* progress) {
  JobOutcome outcome;
  outcome.policy = policy;
  const JobTrace trace = parts.empty() ? given : OnlyFitting(given, parts);
  outcome.arrivals = static_cast<int64_t>(trace.jobs.size());
  outcome.left_out = static_cast<int64_t>(given.jobs.size()) - outcome.arrivals;
  if (trace.jobs.empty()) return Error(Code::kInvalid, "no job of the trace fits on the cluster: give it more nodes");
  const BaselineInfo* baseline = FindBaseline(policy);
  EngineConfig config = options.cluster;
  config.free_moves =
      !options.exact && baseline != nullptr && baseline->moves_freely && !config.HasFaults() && !config.HasStragglers();
  outcome.free_moves = config.free_moves;
  VRUN_ASSIGN(const TeamTables teams, ReadTeams(teams_text, options.teams_name, trace));
  const int64_t span = trace.jobs.back().submit_us;
  SizeSamples sizes;
  for (int32_t i = 0; i < options.shifts; ++i) {
    const JobTrace shifted = ShiftArrivals(trace, span / options.shifts * i);
    config.seed = options.cluster.seed + static_cast<uint64_t>(i);
    RunResult result;
    if (!parts.empty()) {
      VRUN_ASSIGN(result, RunParts(options, shifted, policy, config, parts, teams, progress));
    } else if (policy == kStaticPolicy.name && !teams.shares.empty()) {
      std::vector<TeamOutcome> outcomes;
      VRUN_ASSIGN(result, RunPartitioned(shifted, config, teams.shares, &outcomes));
      if (i == 0) outcome.teams = std::move(outcomes);
    } else {
      VRUN_ASSIGN(std::unique_ptr<Policy> object, MakePolicy(options, policy, shifted, teams));
      const bool first = i == 0;
      std::optional<Recorder> recorder;
      std::optional<ShareMeter> meter;
      Policy* outermost = object.get();
      if (first && options.curves) outermost = &recorder.emplace(shifted, *outermost);
      if (first && !teams.shares.empty()) outermost = &meter.emplace(shifted, teams.shares, *outermost);
      config.progress = progress->Next(shifted.jobs.size());
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

// What happened in reality to the jobs of which the trace says it. `capacity`: GPUs.
std::optional<JobOutcome> MeasuredOutcome(const StudyOptions& options, const JobTrace& given, int64_t capacity) {
  JobTrace trace = given;
  std::erase_if(trace.jobs, [](const TraceJob& job) { return job.happened.waited_us < 0; });
  if (trace.jobs.empty()) return std::nullopt;
  RunResult result;
  result.capacity = capacity;
  for (const TraceJob& job : trace.jobs) {
    JobRecord& record = result.jobs.emplace_back();
    record.state = JobState::kDone;
    record.end_us = job.submit_us + job.duration_us + job.happened.waited_us;
    record.held_us = std::max(job.happened.held_us, job.duration_us);
    record.lost_us = record.held_us - job.duration_us;
    record.preemptions = job.happened.preemptions;
    result.end_us = std::max(result.end_us, record.end_us);
  }
  JobOutcome outcome;
  outcome.policy = "measured";
  outcome.arrivals = static_cast<int64_t>(trace.jobs.size());
  outcome.left_out = static_cast<int64_t>(given.jobs.size()) - outcome.arrivals;
  outcome.runs.push_back(Measure(trace, result));
  if (!options.prices.empty()) MeasureCosts(trace, result, options.prices, &outcome.runs.back());
  SizeSamples sizes;
  sizes.Add(trace, result);
  outcome.sizes = sizes.Classes();
  Describe(trace, result, options.prices, &outcome);
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
  ClusterParts parts, present;
  if (!options.parts_text.empty()) {
    VRUN_ASSIGN(parts, ReadClusterParts(options.parts_text, options.parts_name));
    study.nodes = NodesOf(parts);
    study.gpus = GpusOf(parts);
  }
  if (!options.present_parts_text.empty()) {
    VRUN_ASSIGN(present, ReadClusterParts(options.present_parts_text, "the present cluster"));
  }
  const double span = Seconds(trace.jobs.back().submit_us);
  study.span_days = span / kSecondsPerDay;
  double asked = 0;
  for (const TraceJob& job : trace.jobs) asked += Seconds(job.duration_us) * job.gpus;
  if (span > 0) study.offered_load = asked / (span * static_cast<double>(study.gpus));
  std::vector<std::string> policies = options.policies;
  if (policies.empty()) policies.emplace_back(kCorePolicy.name);
  // Nobody waits for a replay to hear that the name of the next one is wrong.
  VRUN_ASSIGN(const TeamTables known, ReadTeams(options.teams_text, options.teams_name, trace));
  for (const std::string& policy : policies) {
    if (policy == kStaticPolicy.name && !known.shares.empty()) continue;
    VRUN_TRY(MakePolicy(options, policy, trace, known).map([](const auto&) {}));
  }
  const size_t replays = policies.size() + (present.empty() ? 0 : 1);
  ReplayProgress progress(options.progress, trace.jobs.size() * static_cast<size_t>(options.shifts) * replays);
  study.measured = MeasuredOutcome(options, trace, present.empty() ? study.gpus : GpusOf(present));
  if (!present.empty()) {
    VRUN_ASSIGN(study.present,
                RunJobs(options, trace, std::string(kCorePolicy.name), present, options.present_teams_text, &progress));
    study.present->policy = "present";
  }
  for (const std::string& policy : policies) {
    VRUN_ASSIGN(JobOutcome outcome, RunJobs(options, trace, policy, parts, options.teams_text, &progress));
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
