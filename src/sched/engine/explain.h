// SPDX-License-Identifier: Apache-2.0
// Why a job waits, as data: every obstacle that is in its way now, the most fundamental first. Texts are made from this
// by who shows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/core.h"

namespace vrun::sched::core {

struct Blocker {
  enum class Kind : uint8_t {
    kDependency,   // `other` has not ended
    kBeginTime,    // not before `time`
    kNeverFits,    // no node, even empty, takes a pod of role `role`
    kTopology,     // would fit in the cluster, not within one domain of level `level`
    kLimit,        // `team`'s limit of `gpu_type`: `have` used of `need`
    kGuarantee,    // not preemptible, and `team`'s guarantee is used up: `have` of `need`
    kNoRoom,       // pods of role `role` that fit now: `have` of `need`
    kHolds,        // would fit if nodes were not held for others: job `other` is one of them
    kClaiming,     // its room is being freed: `have` jobs still leave
    kOrder,        // `have` jobs come before it
    kPatience,     // fits, but farther apart than it prefers; waits until `time` for better
    kHeadroom,     // room is left idle for inference: thousandths of GPUs, `have` free of `need`
    kDoomed,       // `other` did not succeed, and this was to start only then
    kMaintenance,  // `have` nodes would have room but go out of service, the last until `time`
  };
  Kind kind;
  int32_t role = -1;
  int64_t have = 0;
  int64_t need = 0;
  JobId other = 0;
  Micros time = 0;
  Level level = Level::kCluster;
  std::string team;
  std::string gpu_type;
};

// nullopt when the job is not known or not waiting.
std::optional<std::vector<Blocker>> Explain(const State& state, JobId job);

// kInvalid when no set of nodes, all of them empty and up, could ever hold it; fine while its pool has no node at all.
Status Feasible(const State& state, const JobSpec& job);

// What would start a waiting job now, each by itself.
struct Counterfactual {
  enum class Kind : uint8_t {
    kFewerPods,  // `number` pods of role `role` (the most that would)
    kFewerGpus,  // `number` GPUs a pod of role `role`
    kType,       // on `gpu_type`
    kLevel,      // if its pods had to be together no closer than `level`
    kClass,      // at class `klass`: it would be worth preempting others
    kAfter,      // when job `after` has ended, expected at `time`
  };
  Kind kind;
  int32_t role = -1;
  int64_t number = 0;
  std::string gpu_type = {};
  Class klass = Class::kScavenger;
  Level level = Level::kCluster;
  JobId after = 0;
  Micros time = 0;
};
// Empty for a job that does not wait. Needs the state for trying; changes nothing that decisions rest on. Milliseconds.
std::vector<Counterfactual> WhatIf(State& state, JobId job);

// When a waiting job starts if nobody else comes and nothing is preempted.
struct Forecast {
  Micros start = 0;
  Micros late = 0;         // if all that it waits for takes as long as nine of ten do
  int64_t confidence = 0;  // thousandths: more the more of what it waits for has learned run times, and the fewer jobs
                           // come before it
  JobId after = 0;         // the last of those that have to end; 0: none
};
// nullopt when it does not wait, when a quota keeps it, or when no ends of others would help.
std::optional<Forecast> ForecastFor(State& state, JobId job);

// The last decisions about a job that is known, oldest first, with what it was worth then.
std::vector<Decision> Why(const State& state, JobId job);

}  // namespace vrun::sched::core
