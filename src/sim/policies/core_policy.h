// SPDX-License-Identifier: Apache-2.0
// The scheduler core of src/sched as a policy of the simulator: the production library, fed with the same events. It
// does not see durations. Nodes are exact: a placed job stays there until it is preempted.
#pragma once

#include <memory>

#include "sched/model/policy.h"
#include "sim/policies/baselines.h"
#include "sim/policies/team_terms.h"
#include "sim/policies/virtual_clusters.h"
#include "sim/replay/engine.h"

namespace vrun::sim {

inline constexpr BaselineInfo kCorePolicy{"vrun", "the scheduler of vrun, without knowing durations"};

// Not for EngineConfig::free_moves. `shares`: each team's own GPUs, used as guarantee and as weight; empty: no quotas.
// `terms`: the teams of a real cluster, in place of shares. `trace` must outlive the result.
std::unique_ptr<Policy> MakeCorePolicy(const JobTrace& trace, const sched::core::Policy& weights,
                                       const TeamShares& shares = {}, const TeamTerms& terms = {});

}  // namespace vrun::sim
