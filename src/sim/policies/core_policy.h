// SPDX-License-Identifier: Apache-2.0
// The scheduler core of src/sched as a policy of the simulator: the library that production runs, fed with the same
// events. It sees no durations. Nodes are exact: what it places stays there until it preempts it.
#pragma once

#include <memory>

#include "sched/model/policy.h"
#include "sim/policies/baselines.h"
#include "sim/policies/virtual_clusters.h"
#include "sim/replay/engine.h"

namespace vrun::sim {

inline constexpr BaselineInfo kCorePolicy{"vrun", "the scheduler of vrun, without knowing durations"};

// The trace must outlive it. Not for EngineConfig::free_moves.
// `shares`: what is each team's own, as guarantee and as weight; empty: no quotas. It must outlive it, too.
std::unique_ptr<Policy> MakeCorePolicy(const JobTrace& trace, const sched::core::Policy& weights,
                                       const TeamShares& shares = {});

}  // namespace vrun::sim
