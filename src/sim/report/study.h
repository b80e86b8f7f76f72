// SPDX-License-Identifier: Apache-2.0
// One question to the simulator (a trace, a cluster, some policies) and its answer as data. The implementation of `vctl
// sim`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/pods/fill.h"
#include "sim/policies/slurm_policy.h"
#include "sim/report/outcome.h"

namespace vrun::sim {

struct StudyOptions {
  // The content of the file, and its path for errors.
  std::string trace_text;
  std::string trace_name;
  // For a trace of pods only: the table of their nodes.
  std::string nodes_text;
  std::string nodes_name;
  double fill = 1.3;
  // For gang jobs only:
  EngineConfig cluster;
  // A real cluster in place of cluster.nodes and cluster.gpus_per_node (cluster_parts.h); empty: none. Each part is
  // replayed on its own; jobs that fit on none are left out and counted.
  std::string parts_text;
  std::string parts_name;
  // The cluster and the teams as they are, to compare with: replayed first, with the scheduler of vrun. Empty: they are
  // not.
  std::string present_parts_text;
  std::string present_teams_text;
  // Keep running jobs in place for preemptive baselines too. By default these may move jobs at no cost, as in the
  // published tables.
  bool exact = false;
  std::optional<std::string> from;   // seconds since the first submission, or a date of the trace
  std::optional<std::string> until;  // the same
  // Each team's own GPUs (virtual_clusters.h), or the teams of a real cluster (team_terms.h); empty: no quotas.
  std::string teams_text;
  std::string teams_name;
  SlurmParameters slurm;  // of the Slurm policy
  Prices prices;          // empty: no costs are reported
  // For gang jobs: also report the first replay over time. Takes a third longer.
  bool curves = false;
  // Policy names; empty: the default policy.
  std::vector<std::string> policies;
  // Contents of the files named as policies: weights of the core. A name is a file if it has a '/' or a '.'.
  std::map<std::string, std::string> weight_files;
  // Replays per policy: of jobs with arrivals shifted by i/n of the span, of pods in different random orders.
  int32_t shifts = 1;
  // Is told now and then how much of all replays is done, 0 to 1.
  std::function<void(double)> progress;
};

struct PodOutcome {
  std::string policy;
  double allocation_percent = 0;
  double fragmentation_percent = 0;
  double fragmentation_idle_percent = 0;
  double moved_percent = 0;          // moves of placed pods, per pod placed
  double allocation_half_width = 0;  // of the 95 % confidence interval
  double fragmentation_half_width = 0;
  // With prices, cost per hour of all GPUs and of the allocated ones (first run).
  double cost_per_hour = 0;
  double allocated_cost_per_hour = 0;
  Series allocation;     // over arrived percent, first run
  Series fragmentation;  // the same
};

struct Study {
  std::string trace_name;
  int64_t arrivals = 0;      // jobs, or pods of the table
  int64_t without_gpus = 0;  // jobs that ask for no GPU, which were left out
  int64_t gpus = 0;          // of the cluster
  int64_t nodes = 0;
  int32_t shifts = 1;
  double span_days = 0;  // of the submissions
  bool has_prices = false;
  bool has_deadlines = false;
  EngineConfig cluster;     // of gang jobs
  double offered_load = 0;  // GPU time requested / (capacity x span), or the fill
  // One of the two has one entry per policy, in the order of the request.
  std::vector<JobOutcome> jobs;
  std::vector<PodOutcome> pods;
  // If the trace says what happened to its jobs, and if the present cluster was given.
  std::optional<JobOutcome> measured;
  std::optional<JobOutcome> present;
};

// kInvalid, one line, for errors that the caller can correct.
Result<Study> RunStudy(const StudyOptions& options);

// Whether the name stands for a file of weights.
bool IsWeightFile(std::string_view policy);

// "64x8": nodes x GPUs per node.
Status ParseNodes(std::string_view text, EngineConfig* cluster);

}  // namespace vrun::sim
