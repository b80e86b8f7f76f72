// SPDX-License-Identifier: Apache-2.0
// One question put to the simulator: a trace, a cluster, some policies; and its answer as data. What `vctl sim` runs.
#pragma once

#include <cstdint>
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
  // What ReadFile gave, and the path for errors.
  std::string trace_text;
  std::string trace_name;
  // Of pods only: their nodes.
  std::string nodes_text;
  std::string nodes_name;
  double fill = 1.3;
  // Of gang jobs only:
  EngineConfig cluster;
  // Preemptive baselines keep running jobs in place, too. By default they may move them for nothing, as in the tables
  // that they are compared with.
  bool exact = false;
  std::optional<std::string> from;   // seconds since the first submission, or a date of the trace
  std::optional<std::string> until;  // the same
  // What is each team's own (virtual_clusters.h); empty: teams have no quotas.
  std::string teams_text;
  std::string teams_name;
  SlurmParameters slurm;  // of the policy of that name
  Prices prices;          // empty: nothing is said about costs
  // Of gang jobs: also what happened over time, of the first replay. Costs a third more time.
  bool curves = false;
  // Names; empty: the default one.
  std::vector<std::string> policies;
  // What a name that looks like a file (it has a '/' or a '.') holds: weights of the core, by that name.
  std::map<std::string, std::string> weight_files;
  // Replays per policy: of jobs with arrivals shifted by i/n of the span, of pods with other random orders.
  int32_t shifts = 1;
};

struct PodOutcome {
  std::string policy;
  double allocation_percent = 0;
  double fragmentation_percent = 0;
  double fragmentation_idle_percent = 0;
  double moved_percent = 0;          // moves of pods that had been placed, of those placed
  double allocation_half_width = 0;  // of the 95 % confidence interval
  double fragmentation_half_width = 0;
  // With prices, an hour: of all GPUs, and of what was handed out of them (first run).
  double cost_per_hour = 0;
  double allocated_cost_per_hour = 0;
  Series allocation;     // over arrived percent, first run
  Series fragmentation;  // the same
};

struct Study {
  std::string trace_name;
  int64_t arrivals = 0;      // jobs, or pods of the table
  int64_t without_gpus = 0;  // jobs that ask for none and were left out
  int64_t gpus = 0;          // of the cluster
  int64_t nodes = 0;
  int32_t shifts = 1;
  double span_days = 0;  // of the submissions
  bool has_prices = false;
  bool has_deadlines = false;
  EngineConfig cluster;     // of gang jobs
  double offered_load = 0;  // GPU time asked for / (capacity x span), or the fill
  // One of the two has entries, one per policy in the order asked for.
  std::vector<JobOutcome> jobs;
  std::vector<PodOutcome> pods;
};

// kInvalid for what the caller can mend, one line.
Result<Study> RunStudy(const StudyOptions& options);

// The name stands for a file of weights.
bool IsWeightFile(std::string_view policy);

// "64x8": nodes x GPUs of each.
Status ParseNodes(std::string_view text, EngineConfig* cluster);

}  // namespace vrun::sim
