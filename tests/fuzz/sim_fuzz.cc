// SPDX-License-Identifier: Apache-2.0
// Arbitrary tables of jobs, pods, nodes, prices and teams, and parameters of Slurm. The first byte selects the reader.
// A refusal is one line that names the place; accepted input satisfies the guarantees of the readers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "sim/pods/pods.h"
#include "sim/policies/slurm_policy.h"
#include "sim/policies/virtual_clusters.h"
#include "sim/replay/job_trace.h"
#include "sim/report/prices.h"

namespace vrun::sim {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireOneLine(const Error& error, std::string_view begin = "t:") {
  Require(error.code() == Code::kInvalid && error.message().starts_with(begin));
  for (char c : error.message()) Require(static_cast<unsigned char>(c) >= 0x20);
}

void FuzzJobs(const Csv& csv) {
  auto trace = ReadJobTrace(csv);
  if (!trace) return RequireOneLine(trace.error());
  Require(!trace->jobs.empty() && trace->jobs.front().submit_us == 0);
  int64_t before = 0;
  for (const TraceJob& job : trace->jobs) {
    Require(job.submit_us >= before && job.duration_us >= 1 && job.gpus >= 1);
    Require(job.team < static_cast<int32_t>(trace->teams.size()));
    before = job.submit_us;
  }
  Require(ShiftArrivals(*trace, before / 2).jobs.size() == trace->jobs.size());
}

void FuzzPods(const Csv& csv) {
  ModelNames models;
  auto pods = ReadPods(csv, &models);
  if (!pods) return RequireOneLine(pods.error());
  for (const Pod& pod : *pods) {
    Require(pod.gpus >= 0 && pod.gpus <= kMostGpusPerNode && pod.total_milli() <= kMostGpusPerNode * kMilliPerGpu);
    Require((pod.gpus == 0) == (pod.gpu_milli == 0));
  }
}

void FuzzNodes(const Csv& csv) {
  ModelNames models;
  auto nodes = ReadPodNodes(csv, &models);
  if (!nodes) return RequireOneLine(nodes.error());
  for (const PodNode& node : *nodes) Require((node.gpus == 0) == (node.model < 0));
}

void FuzzPrices(const std::string& text) {
  auto prices = ReadPrices(text, "t");
  if (!prices) return RequireOneLine(prices.error());
  for (const auto& [type, price] : prices->by_type) Require(price >= 0 && price <= 1e6);
}

void FuzzTeams(const std::string& text) {
  JobTrace trace;
  trace.teams = {"a", "b"};
  trace.jobs.push_back({.gpus = 3, .team = 1});
  auto shares = ReadTeamShares(text, "t", trace);
  if (!shares) return RequireOneLine(shares.error());
  Require(shares->size() == 2 && (*shares)[1] >= 3);
}

void FuzzSlurm(const std::string& text) {
  auto parameters = ParseSlurmParameters(text);
  if (!parameters) return RequireOneLine(parameters.error(), "'");
  Require(parameters->interval_s >= 1 && parameters->jobs_tested >= 1);
}

}  // namespace
}  // namespace vrun::sim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::sim;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 3: FuzzPrices(text); return 0;
    case 4: FuzzTeams(text); return 0;
    case 5: FuzzSlurm(text); return 0;
    default: break;
  }
  auto csv = Csv::Parse(std::move(text), "t");
  if (!csv) {
    RequireOneLine(csv.error());
    return 0;
  }
  switch (data[0] % 6) {
    case 0: FuzzJobs(*csv); break;
    case 1: FuzzPods(*csv); break;
    default: FuzzNodes(*csv);
  }
  return 0;
}
