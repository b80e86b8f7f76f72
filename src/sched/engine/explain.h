// SPDX-License-Identifier: Apache-2.0
// Why a job waits, as data: all current obstacles, the most fundamental first. Callers make texts from it.
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
    kTopology,     // fits in the cluster, but not within one domain of level `level`
    kLimit,        // `team`'s limit of `gpu_type`: `have` used of `need`
    kGuarantee,    // not preemptible, and `team`'s guarantee is used up: `have` of `need`
    kNoRoom,       // pods of role `role` that fit now: `have` of `need`
    kHolds,        // would fit if nodes were not held for others: job `other` is one of them
    kClaiming,     // its room is being freed: `have` jobs have yet to leave
    kOrder,        // `have` jobs come before it
    kPatience,     // fits, but more spread out than it prefers; waits until `time` for a better place
    kHeadroom,     // room is left idle for inference: thousandths of GPUs, `have` free of `need`
    kDoomed,       // `other` did not succeed, and this job depends on its success
    kMaintenance,  // `have` nodes have room but go out of service, the last until `time`
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

// nullopt when the job is unknown or not waiting.
std::optional<std::vector<Blocker>> Explain(const State& state, JobId job);

// kInvalid when no set of empty nodes that are up could ever hold the job. No error while its pool has no node at all.
Status Feasible(const State& state, const JobSpec& job);

// One change that alone would start a waiting job now.
struct Counterfactual {
  enum class Kind : uint8_t {
    kFewerPods,  // `number` pods of role `role` (the largest number that would start)
    kFewerGpus,  // `number` GPUs per pod of role `role`
    kType,       // on `gpu_type`
    kLevel,      // if `level` were enough as the level that its pods share
    kClass,      // at class `klass`, which is worth preempting for
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
// Empty for a job that does not wait. Uses the state for trials but changes nothing that affects decisions. Takes
// milliseconds.
std::vector<Counterfactual> WhatIf(State& state, JobId job);

// When a waiting job starts if no other job arrives and nothing is preempted.
struct Forecast {
  Micros start = 0;
  Micros late = 0;         // if everything it waits for takes as long as nine of ten such jobs
  int64_t confidence = 0;  // thousandths; higher if more of what it waits for has learned run times and fewer jobs come
                           // before it
  JobId after = 0;         // the last job that has to end first; 0: none
};
// nullopt when the job does not wait, when a quota blocks it, or when the end of other jobs would not help.
std::optional<Forecast> ForecastFor(State& state, JobId job);

// What would happen to a job that is not submitted yet, if no other job arrives.
struct Trial {
  bool now = false;                  // it would start at once
  std::vector<PodPlace> pods;        // where: now, or when enough running jobs have ended; empty: nobody knows
  std::optional<Forecast> forecast;  // when, unless now; nullopt: as in ForecastFor
};
// kInvalid: Validate refuses it. Uses the state for trials but changes nothing that affects decisions.
Result<Trial> TryJob(State& state, const JobSpec& job);

// The last decisions about a known job, oldest first, with its worth at the time.
std::vector<Decision> Why(const State& state, JobId job);

}  // namespace vrun::sched::core
