// SPDX-License-Identifier: Apache-2.0
// The options of `vctl sim`, shared by vctl, which parses, helps and completes, and the program vrun-sim, which
// simulates.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "cli/base/command.h"

namespace vrun::cli {

enum SimOption {
  kNodes,
  kNodesFile,
  kFill,
  kPolicy,
  kPreemptCost,
  kSaveCost,
  kStartLatency,
  kShift,
  kFrom,
  kUntil,
  kExact,
  kTeams,
  kSlurm,
  kCheckpoint,
  kNodeMtbf,
  kNodeRepair,
  kSlowNodes,
  kSeed,
  kPrice,
  kBySize,
  kCluster,
  kPresentCluster,
  kPresentTeams,
  kProgress,
  kLabel,
  // Only of vctl, which asks the cluster:
  kFromCluster,
  kSince,
  kSaveTrace,
  kTeam,
  kNodeChange
};
inline constexpr OptionSpec kSimOptions[] = {
    {kNodes, 0, "nodes", Argument::kRequired, "NxG", "the cluster: nodes x GPUs of each (64x8)"},
    {kNodesFile, 0, "nodes-file", Argument::kRequired, "FILE", "the nodes for a table of pods", Completes::kFiles},
    {kFill, 0, "fill", Argument::kRequired, "RATIO", "GPUs that pods ask for, of those there are (1.3)"},
    {kPolicy, 0, "policy", Argument::kRequired, "NAME|FILE,...",
     "policies to compare, or weights of ours; `list` names them"},
    {kPreemptCost, 0, "preempt-cost", Argument::kRequired, "SECONDS", "what a preempted job loses (0)"},
    {kSaveCost, 0, "save-cost", Argument::kRequired, "SECONDS", "how long it holds its GPUs to save (0)"},
    {kStartLatency, 0, "start-latency", Argument::kRequired, "SECONDS", "from having GPUs to working (0)"},
    {kCheckpoint, 0, "checkpoint", Argument::kRequired, "SECONDS",
     "jobs save so often by themselves, and go back to that when a node fails (0: all the time)"},
    {kNodeMtbf, 0, "node-mtbf", Argument::kRequired, "HOURS", "each node fails so often, on average (never)"},
    {kNodeRepair, 0, "node-repair", Argument::kRequired, "HOURS", "and is back after (1)"},
    {kSlowNodes, 0, "slow-nodes", Argument::kRequired, "PERCENT:FACTOR", "of the nodes, how much slower: 5:1.5 (none)"},
    {kSeed, 0, "seed", Argument::kRequired, "N", "which nodes fail when, and which are slow (1)"},
    {kPrice, 0, "price", Argument::kRequired, "NUMBER|FILE",
     "of a GPU-hour, or a table gpu_type,price (* for others): what it all costs", Completes::kFiles},
    {kShift, 0, "shift", Argument::kRequired, "N", "N replays with shifted arrivals, averaged (1)"},
    {kFrom, 0, "from", Argument::kRequired, "TIME", "only jobs submitted since: seconds, or a date"},
    {kUntil, 0, "until", Argument::kRequired, "TIME", "only jobs submitted before"},
    {kTeams, 0, "teams", Argument::kRequired, "FILE", "what is each team's own: a table team,gpus", Completes::kFiles},
    {kSlurm, 0, "slurm", Argument::kRequired, "PARAMETERS", "SchedulerParameters of the model: bf_interval=30,..."},
    {kBySize, 0, "by-size", Argument::kNone, "", "the average wait by the jobs' number of GPUs, a line for each size"},
    {kExact, 0, "exact", Argument::kNone, "", "preemptive baselines cannot move jobs for nothing"},
    {kCluster, 0, "cluster", Argument::kRequired, "FILE",
     "the cluster in place of --nodes: a table pool,gpu_type,nodes,gpus; each line is replayed on its own",
     Completes::kFiles},
    {kPresentCluster, 0, "present-cluster", Argument::kRequired, "FILE",
     "such a table to compare with, replayed first with the policy vrun", Completes::kFiles},
    {kPresentTeams, 0, "present-teams", Argument::kRequired, "FILE", "its teams, as --teams", Completes::kFiles},
    {kProgress, 0, "progress", Argument::kNone, "", "lines of JSON on stderr say how much is done"},
    {kLabel, 0, "label", Argument::kRequired, "TEXT", "what the answer calls the trace (its path)"},
};
inline constexpr OptionSpec kFromClusterOptions[] = {
    {kFromCluster, 0, "from-cluster", Argument::kNone, "",
     "replay the cluster's own history in place of a TRACE, on the cluster as it is"},
    {kSince, 0, "since", Argument::kRequired, "TIME",
     "of it the jobs submitted since: 14d, 12h, 2026-11-28, month (14d); --until ends it"},
    {kSaveTrace, 0, "save-trace", Argument::kRequired, "FILE", "keep the history as a trace", Completes::kFiles},
    {kTeam, 0, "team", Argument::kRequired, "TEAM=GPUS[:WEIGHT]",
     "what if the team had this guarantee, and this weight; several with commas between them"},
    {kNodeChange, 0, "node-change", Argument::kRequired, "POOL[/TYPE]=+N",
     "what if there were N nodes more, less (-N), N in all (N), or of another kind (NxGPUS)"},
};

// Those of vctl: all of them.
inline constexpr auto kCtlSimOptions = [] {
  std::array<OptionSpec, std::size(kSimOptions) + std::size(kFromClusterOptions)> all{};
  std::copy(std::begin(kSimOptions), std::end(kSimOptions), all.begin());
  std::copy(std::begin(kFromClusterOptions), std::end(kFromClusterOptions), all.begin() + std::size(kSimOptions));
  return all;
}();

constexpr CtlCommand SimCommand(std::span<const OptionSpec> options, Status (*validate)(const CtlInvocation&),
                                Result<int> (*run)(const CtlInvocation&)) {
  return {"sim",
          "[TRACE]",
          "a trace of jobs or pods, or the cluster's own history, against scheduling policies",
          options,
          Completes::kFiles,
          validate,
          run,
          true};
}

}  // namespace vrun::cli
