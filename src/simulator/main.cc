// SPDX-License-Identifier: Apache-2.0
// vrun-sim, started by `vctl sim`: replays a trace against scheduling policies on this machine. It does not contact a
// cluster.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/escape.h"
#include "base/files.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/ctl/sim_command.h"
#include "sim/policies/baselines.h"
#include "sim/policies/core_policy.h"
#include "sim/report/html_report.h"
#include "sim/report/study.h"

namespace vrun::cli {
namespace {

constexpr uint64_t kMostSeconds = 365 * 86400;
constexpr uint64_t kMostShifts = 1000;
constexpr size_t kMostBytes = size_t{1} << 30;

Result<double> ParseBetween(const std::string& text, double least, double most, const std::string& how) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  // strtod also accepts spaces, nan, and hexadecimal numbers.
  const bool digits = text.find_first_not_of("0123456789.") == text.npos;
  if (text.empty() || !digits || *end != 0 || value < least || value > most) {
    return Error(Code::kInvalid, "'" + Escape(text) + "': not " + how);
  }
  return value;
}

Status ReadSeconds(const CtlInvocation& invocation, SimOption option, int64_t* micros) {
  if (auto text = invocation.Value(option)) {
    VRUN_ASSIGN(uint64_t seconds, ParseNumber(*text, kMostSeconds));
    *micros = static_cast<int64_t>(seconds) * 1'000'000;
  }
  return {};
}

Status ReadHours(const CtlInvocation& invocation, SimOption option, int64_t* micros) {
  if (auto text = invocation.Value(option)) {
    VRUN_ASSIGN(double hours, ParseBetween(*text, 0.001, 1e6, "hours: write a number above 0, as in 720"));
    *micros = static_cast<int64_t>(hours * 3600e6);
  }
  return {};
}

// "5:1.5".
Status ReadSlowNodes(const CtlInvocation& invocation, sim::EngineConfig* cluster) {
  auto text = invocation.Value(kSlowNodes);
  if (!text) return {};
  constexpr char kHow[] = "slow nodes: write percent:factor, as in 5:1.5";
  const size_t colon = std::min(text->find(':'), text->size());
  VRUN_ASSIGN(uint64_t percent, ParseNumber(text->substr(0, colon), 100));
  VRUN_ASSIGN(double factor, ParseBetween(text->substr(std::min(colon + 1, text->size())), 1, 100, kHow));
  cluster->slow_nodes_percent = static_cast<int32_t>(percent);
  cluster->slow_percent = static_cast<int32_t>(std::lround(factor * 100));
  return {};
}

Status ReadExecutor(const CtlInvocation& invocation, sim::EngineConfig* cluster) {
  VRUN_TRY(ReadSeconds(invocation, kPreemptCost, &cluster->restore_us));
  VRUN_TRY(ReadSeconds(invocation, kSaveCost, &cluster->save_us));
  VRUN_TRY(ReadSeconds(invocation, kStartLatency, &cluster->start_latency_us));
  VRUN_TRY(ReadSeconds(invocation, kCheckpoint, &cluster->checkpoint_us));
  cluster->node_repair_us = int64_t{3600} * 1'000'000;
  VRUN_TRY(ReadHours(invocation, kNodeMtbf, &cluster->node_mtbf_us));
  VRUN_TRY(ReadHours(invocation, kNodeRepair, &cluster->node_repair_us));
  if (auto text = invocation.Value(kSeed)) {
    VRUN_ASSIGN(cluster->seed, ParseNumber(*text, 1'000'000'000));
  }
  return ReadSlowNodes(invocation, cluster);
}

// All options except the files' contents.
Result<sim::StudyOptions> OptionsOf(const CtlInvocation& invocation) {
  sim::StudyOptions options;
  if (auto text = invocation.Value(kNodes)) VRUN_TRY(sim::ParseNodes(*text, &options.cluster));
  if (auto text = invocation.Value(kFill)) {
    VRUN_ASSIGN(options.fill, ParseBetween(*text, 0.001, 100, "a ratio: write a number above 0, as in 1.3"));
  }
  VRUN_TRY(ReadExecutor(invocation, &options.cluster));
  if (auto text = invocation.Value(kShift)) {
    VRUN_ASSIGN(uint64_t shifts, ParseNumber(*text, kMostShifts));
    options.shifts = static_cast<int32_t>(shifts);
  }
  if (auto text = invocation.Value(kSlurm)) {
    VRUN_ASSIGN(options.slurm, sim::ParseSlurmParameters(*text));
  }
  options.from = invocation.Value(kFrom);
  options.until = invocation.Value(kUntil);
  options.exact = invocation.Has(kExact);
  for (const ParsedOption& option : invocation.words.options) {
    if (option.spec->id != kPolicy) continue;
    for (size_t at = 0; at <= option.value.size();) {
      const size_t comma = std::min(option.value.find(',', at), option.value.size());
      options.policies.push_back(option.value.substr(at, comma - at));
      at = comma + 1;
    }
  }
  options.teams_name = invocation.Value(kTeams).value_or("");
  options.nodes_name = invocation.Value(kNodesFile).value_or("");
  options.parts_name = invocation.Value(kCluster).value_or("");
  if (invocation.Has(kCluster) && invocation.Has(kNodes)) {
    return Error(Code::kInvalid, "--cluster says what --nodes says: leave one out");
  }
  if (!invocation.words.operands.empty()) options.trace_name = invocation.words.operands[0];
  return options;
}

Status OneTrace(const CtlInvocation& invocation) {
  auto options = OptionsOf(invocation);
  if (!options) return std::move(options).error();
  const bool lists = options->policies == std::vector<std::string>{"list"};
  if (invocation.words.operands.size() == (lists ? 0 : 1)) return {};
  return Error(Code::kInvalid, "name one trace, a CSV file of jobs or pods, or write --from-cluster");
}

std::string Fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

// "27157", or for several replays "27157±310".
std::string WithError(double mean, double half_width, int decimals) {
  return Fixed(mean, decimals) + (half_width > 0 ? "±" + Fixed(half_width, decimals) : "");
}

std::string JobsAsTable(const sim::Study& study, bool wide, bool headers) {
  struct Column {
    const char* header;
    double sim::Metrics::*value;
    int decimals;
    bool always;
    bool history = false;  // always for a cluster's history
  };
  static constexpr Column kColumns[] = {
      {"COMPLETION", &sim::Metrics::avg_completion_s, 0, true},
      {"P99-COMPLETION", &sim::Metrics::p99_completion_s, 0, false},
      {"WAIT", &sim::Metrics::avg_wait_s, 0, true},
      {"MEDIAN-WAIT", &sim::Metrics::p50_wait_s, 0, false, true},
      {"P90-WAIT", &sim::Metrics::p90_wait_s, 0, false, true},
      {"P95-WAIT", &sim::Metrics::p95_wait_s, 0, false},
      {"P99-WAIT", &sim::Metrics::p99_wait_s, 0, true},
      {"WAIT>8", &sim::Metrics::wait_large_gangs_s, 0, true},
      {"UTILIZATION", &sim::Metrics::utilization, 4, true},
      {"GPU-HOURS", &sim::Metrics::gpu_hours, 1, false, true},
      {"PREEMPTIONS", &sim::Metrics::preemptions, 0, true},
      {"LOST%", &sim::Metrics::lost_work_percent, 2, true},
      {"DEADLINES%", &sim::Metrics::deadlines_met_percent, 2, false},
  };
  // Of a cluster's history everybody asks how long half of the jobs waited.
  const bool history = study.measured || study.present;
  const auto shows = [&](const Column& column) { return wide || column.always || (history && column.history); };
  std::vector<std::string> titles{"POLICY"};
  for (const Column& column : kColumns) {
    if (shows(column)) titles.emplace_back(column.header);
  }
  Table table(std::move(titles));
  const auto add = [&](const sim::JobOutcome& outcome) {
    std::vector<std::string> cells{outcome.policy + (outcome.free_moves ? "*" : "")};
    for (const Column& column : kColumns) {
      if (!shows(column)) continue;
      cells.push_back(
          WithError(outcome.summary.mean.*column.value, outcome.summary.half_width.*column.value, column.decimals));
    }
    table.Add(std::move(cells));
  };
  if (study.measured) add(*study.measured);
  if (study.present) add(*study.present);
  for (const sim::JobOutcome& outcome : study.jobs) add(outcome);
  const bool any_free =
      std::any_of(study.jobs.begin(), study.jobs.end(), [](const sim::JobOutcome& o) { return o.free_moves; });
  std::string text = table.Format(headers);
  if (!headers) return text;
  if (any_free) text += "\n* moves running jobs for nothing; --exact forbids it\n";
  if (history && study.measured) {
    text += "\nmeasured: what happened to " + std::to_string(study.measured->arrivals) + " jobs that are over";
    if (study.present) text += "; present: their replay on the cluster as it is";
    text += "; others: on " + std::to_string(study.nodes) + " nodes with " + std::to_string(study.gpus) + " GPUs\n";
  }
  for (const sim::JobOutcome& outcome : study.jobs) {
    if (outcome.left_out == 0) continue;
    text += outcome.policy + ": " + std::to_string(outcome.left_out) +
            " jobs fit on no part of the cluster, and are left out\n";
  }
  return text;
}

// A line for each class of sizes, a column for each policy. Wide: also the longest wait of 19 jobs of 20.
std::string SizesAsTable(const sim::Study& study, bool wide, bool headers) {
  std::vector<std::string> titles{"GPUS", "JOBS"};
  for (const sim::JobOutcome& outcome : study.jobs) {
    std::string name = outcome.policy;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    titles.push_back(name + "-WAIT");
    if (wide) titles.push_back(name + "-P95");
  }
  Table table(std::move(titles));
  // The policies ran the same jobs, so they have the same classes.
  const std::vector<sim::SizeClass>& sizes = study.jobs.front().sizes;
  for (size_t k = 0; k < sizes.size(); ++k) {
    std::vector<std::string> cells{sizes[k].gpus, std::to_string(sizes[k].jobs)};
    for (const sim::JobOutcome& outcome : study.jobs) {
      cells.push_back(Fixed(outcome.sizes[k].wait.mean, 0));
      if (wide) cells.push_back(Fixed(outcome.sizes[k].wait.p95, 0));
    }
    table.Add(std::move(cells));
  }
  return table.Format(headers);
}

std::string PodsAsTable(const sim::Study& study, bool headers) {
  Table table({"POLICY", "ALLOCATION%", "FRAGMENTATION%", "OF-IDLE%", "MOVED%"});
  for (const sim::PodOutcome& outcome : study.pods) {
    table.Add({outcome.policy, WithError(outcome.allocation_percent, outcome.allocation_half_width, 2),
               WithError(outcome.fragmentation_percent, outcome.fragmentation_half_width, 2),
               Fixed(outcome.fragmentation_idle_percent, 2), Fixed(outcome.moved_percent, 2)});
  }
  return table.Format(headers);
}

void SpreadField(const char* name, const sim::Spread& spread, JsonWriter* json) {
  json->Key(name).BeginObject().Key("mean").Number(spread.mean, 1).Key("p25").Number(spread.p25, 1);
  json->Key("p50").Number(spread.p50, 1).Key("p75").Number(spread.p75, 1);
  json->Key("p95").Number(spread.p95, 1).EndObject();
}

void JobFields(const sim::JobOutcome& outcome, bool has_prices, JsonWriter* json) {
  json->Key("policy").String(outcome.policy).Key("free_moves").Bool(outcome.free_moves);
  json->Key("jobs").Int(outcome.arrivals).Key("left_out").Int(outcome.left_out);
  const auto metrics = [&](const sim::Metrics& values) {
    for (const sim::NamedMetric& m : sim::AllMetrics()) json->Key(m.name).Number(values.*m.value, m.decimals);
    if (!has_prices) return;
    for (const sim::NamedMetric& m : sim::CostMetrics()) json->Key(m.name).Number(values.*m.value, m.decimals);
  };
  metrics(outcome.summary.mean);
  if (outcome.runs.size() > 1) {
    json->Key("half_width_95").BeginObject();
    metrics(outcome.summary.half_width);
    json->EndObject();
  }
  json->Key("wait_by_gpus_s").BeginObject();
  for (const sim::SizeClass& size : outcome.sizes) json->Key(size.gpus).Number(size.wait.mean, 1);
  json->EndObject().Key("sizes").BeginArray();
  for (const sim::SizeClass& size : outcome.sizes) {
    json->BeginObject().Key("gpus").String(size.gpus).Key("jobs").Int(size.jobs);
    SpreadField("wait_s", size.wait, json);
    SpreadField("completion_s", size.completion, json);
    json->EndObject();
  }
  json->EndArray().Key("usage").BeginArray();
  for (const sim::TeamUsage& usage : outcome.usage) {
    json->BeginObject().Key("team").String(usage.team).Key("jobs").Int(usage.jobs);
    json->Key("gpu_hours").Number(usage.gpu_hours, 4);
    json->Key("p50_wait_s").Number(usage.p50_wait_s, 1).Key("p90_wait_s").Number(usage.p90_wait_s, 1);
    if (has_prices) json->Key("cost").Number(usage.cost, 2);
    json->EndObject();
  }
  json->EndArray();
  if (outcome.teams.empty()) return;
  json->Key("teams").BeginArray();
  for (const sim::TeamOutcome& team : outcome.teams) {
    json->BeginObject().Key("team").String(team.team).Key("gpus").Int(team.gpus).Key("jobs").Int(team.jobs);
    json->Key("avg_wait_s").Number(team.avg_wait_s, 1);
    json->Key("worst_week_error_percent").Number(team.worst_week_error_percent, 2);
    json->Key("error_percent").Number(team.error_percent, 2).EndObject();
  }
  json->EndArray();
}

void PodFields(const sim::PodOutcome& outcome, const sim::Study& study, JsonWriter* json) {
  json->Key("policy").String(outcome.policy);
  json->Key("allocation_percent").Number(outcome.allocation_percent, 3);
  json->Key("fragmentation_percent").Number(outcome.fragmentation_percent, 3);
  json->Key("fragmentation_idle_percent").Number(outcome.fragmentation_idle_percent, 3);
  json->Key("moved_percent").Number(outcome.moved_percent, 3);
  if (study.has_prices) {
    json->Key("cost_per_hour").Number(outcome.cost_per_hour, 2);
    json->Key("allocated_cost_per_hour").Number(outcome.allocated_cost_per_hour, 2);
  }
  if (study.shifts == 1) return;
  json->Key("half_width_95").BeginObject();
  json->Key("allocation_percent").Number(outcome.allocation_half_width, 3);
  json->Key("fragmentation_percent").Number(outcome.fragmentation_half_width, 3).EndObject();
}

// The metrics of the first policy are at the top level, those of all policies under "policies".
std::string AsJson(const sim::Study& study) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("trace").String(study.trace_name);
  json.Key("arrivals")
      .Int(study.arrivals)
      .Key("without_gpus")
      .Int(study.without_gpus)
      .Key("nodes")
      .Int(study.nodes)
      .Key("gpus")
      .Int(study.gpus);
  json.Key("offered_load").Number(study.offered_load, 4).Key("shifts").Int(study.shifts);
  if (!study.jobs.empty()) JobFields(study.jobs.front(), study.has_prices, &json);
  if (!study.pods.empty()) PodFields(study.pods.front(), study, &json);
  for (const auto& [key, outcome] : {std::pair("measured", &study.measured), std::pair("present", &study.present)}) {
    if (!*outcome) continue;
    json.Key(key).BeginObject();
    JobFields(**outcome, study.has_prices, &json);
    json.EndObject();
  }
  json.Key("policies").BeginArray();
  for (const sim::JobOutcome& outcome : study.jobs) {
    json.BeginObject();
    JobFields(outcome, study.has_prices, &json);
    json.EndObject();
  }
  for (const sim::PodOutcome& outcome : study.pods) {
    json.BeginObject();
    PodFields(outcome, study, &json);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

std::string KnownPolicies(bool headers) {
  Table table({"POLICY", "FOR", "WHAT"});
  table.Add({std::string(sim::kCorePolicy.name), "jobs", std::string(sim::kCorePolicy.summary)});
  for (const sim::BaselineInfo& p : sim::Baselines()) {
    table.Add({std::string(p.name), "jobs", std::string(p.summary)});
  }
  for (const sim::BaselineInfo& p : {sim::kStaticPolicy, sim::kReclaimPolicy}) {
    table.Add({std::string(p.name), "jobs", std::string(p.summary)});
  }
  for (const sim::BaselineInfo& p : {sim::kCorePods, sim::kCorePodsMoved}) {
    table.Add({std::string(p.name), "pods", std::string(p.summary)});
  }
  for (const sim::BaselineInfo& p : sim::PodPolicies()) {
    table.Add({std::string(p.name), "pods", std::string(p.summary)});
  }
  return table.Format(headers);
}

Result<int> Run(const CtlInvocation& invocation) {
  if (invocation.words.operands.empty()) {
    Print(KnownPolicies(invocation.headers));
    return 0;
  }
  VRUN_ASSIGN(sim::StudyOptions options, OptionsOf(invocation));
  VRUN_ASSIGN(options.trace_text, ReadFile(options.trace_name, kMostBytes));
  if (!options.nodes_name.empty()) {
    VRUN_ASSIGN(options.nodes_text, ReadFile(options.nodes_name, kMostBytes));
  }
  if (!options.teams_name.empty()) {
    VRUN_ASSIGN(options.teams_text, ReadFile(options.teams_name, kMostBytes));
  }
  for (const auto& [id, text] :
       {std::pair(kCluster, &options.parts_text), std::pair(kPresentCluster, &options.present_parts_text),
        std::pair(kPresentTeams, &options.present_teams_text)}) {
    if (const auto file = invocation.Value(id)) {
      VRUN_ASSIGN(*text, ReadFile(*file, kMostBytes));
    }
  }
  if (invocation.Has(kProgress)) {
    options.progress = [](double part) { std::fprintf(stderr, "{\"done\":%.3f}\n", part); };
  }
  if (auto price = invocation.Value(kPrice)) {
    // A number may contain a point, and so may a file name.
    auto one = sim::ParsePrice(*price);
    if (one) {
      options.prices = std::move(*one);
    } else if (!sim::IsWeightFile(*price)) {
      return std::move(one).error();
    } else {
      VRUN_ASSIGN(std::string text, ReadFile(*price));
      VRUN_ASSIGN(options.prices, sim::ReadPrices(text, *price));
    }
  }
  options.curves = invocation.format == OutputFormat::kHtml;
  for (const std::string& policy : options.policies) {
    if (!sim::IsWeightFile(policy)) continue;
    VRUN_ASSIGN(options.weight_files[policy], ReadFile(policy));
  }
  VRUN_ASSIGN(sim::Study study, sim::RunStudy(options));
  if (const auto label = invocation.Value(kLabel)) study.trace_name = *label;
  if (invocation.json()) {
    Print(AsJson(study));
  } else if (invocation.format == OutputFormat::kHtml) {
    Print(sim::HtmlReport(study));
  } else if (!study.jobs.empty() && invocation.Has(kBySize)) {
    Print(SizesAsTable(study, invocation.format == OutputFormat::kWide, invocation.headers));
  } else if (!study.jobs.empty()) {
    Print(JobsAsTable(study, invocation.format == OutputFormat::kWide, invocation.headers));
  } else {
    Print(PodsAsTable(study, invocation.headers));
  }
  return 0;
}

}  // namespace
}  // namespace vrun::cli

int main(int argc, char** argv) {
  using namespace vrun::cli;
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return RunCommand(SimCommand(kSimOptions, OneTrace, Run), words);
}
