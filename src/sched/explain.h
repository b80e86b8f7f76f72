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
    kDependency,  // `other` has not ended
    kBeginTime,   // not before `time`
    kNeverFits,   // no node, even empty, takes a pod of role `role`
    kTopology,    // would fit in the cluster, not within one domain of level `level`
    kLimit,       // `team`'s limit of `gpu_type`: `have` used of `need`
    kGuarantee,   // not preemptible, and `team`'s guarantee is used up: `have` of `need`
    kNoRoom,      // pods of role `role` that fit now: `have` of `need`
    kHolds,       // would fit if nodes were not held for others: job `other` is one of them
    kClaiming,    // its room is being freed: `have` jobs still leave
    kOrder,       // `have` jobs come before it
    kPatience,    // fits, but farther apart than it prefers; waits until `time` for better
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

// The numbers behind the last decision about a job: that placed it by preemption, or stopped it.
std::vector<Terms> TermsOf(const State& state, JobId job);

}  // namespace vrun::sched::core
