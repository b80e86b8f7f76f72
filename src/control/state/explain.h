// SPDX-License-Identifier: Apache-2.0
// Why jobs wait, in words: from what the scheduler says (sched/engine/explain.h, sched/engine/view.h) and what the
// controller knows. Nothing here changes a decision; names from outside are escaped.
#pragma once

#include <map>
#include <string>

#include "control/state/scheduler.h"
#include "control/store/store.h"
#include "proto/local.pb.h"

namespace vrun::control {

using JobRows = std::map<uint64_t, JobRow>;  // unfinished

// Positions in the queues of the pools, 1 = next.
std::map<uint64_t, uint32_t> QueuePositions(const sched::core::State& state, const JobRows& jobs);

// One line for a waiting job.
std::string WhyItWaits(const sched::core::State& state, const JobRow& job);

// What a job waits for, what would start it now, when it may start, and what was decided about it: the fields of
// `answer` but state, positions and attempts. `wall_now` and `core_now` are the same moment on the two clocks.
// Milliseconds.
void ExplainJob(sched::core::State& state, const JobRow& job, int64_t wall_now, sched::core::Micros core_now,
                v1::WhyAnswer* answer);

// kInvalid when no node of its pool, up or not, could ever run it; fine while the pool has no node at all.
Status CheckFeasible(const sched::core::State& state, const JobRow& job);

// For a victim, the one who restarts it and its owner: "job 12 (production, team research) needs its room".
std::string PreemptionReason(const sched::core::Preempt& preempt, const JobRows& jobs);

}  // namespace vrun::control
