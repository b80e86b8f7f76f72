// SPDX-License-Identifier: Apache-2.0
// Explains in words why jobs wait, from the scheduler's data (sched/engine/explain.h, sched/engine/inspect.h) and the
// controller's. Nothing here changes a decision. Names from outside are escaped.
#pragma once

#include <map>
#include <string>

#include "control/state/scheduler.h"
#include "control/store/store.h"
#include "proto/local.pb.h"

namespace vrun::control {

using JobRows = std::map<uint64_t, JobRow>;  // unfinished jobs

// Positions in the queues of the pools, 1 = next.
std::map<uint64_t, uint32_t> QueuePositions(const sched::core::State& state, const JobRows& jobs);

// One line for a waiting job.
std::string WhyItWaits(const sched::core::State& state, const JobRow& job);

// Fills all fields of `answer` but state, positions and attempts: what the job waits for, what would start it now, when
// it may start, and the decisions about it. `wall_now` and `core_now` are the same moment on the two clocks. Times in
// the answer are milliseconds.
void ExplainJob(sched::core::State& state, const JobRow& job, int64_t wall_now, sched::core::Micros core_now,
                v1::WhyAnswer* answer);

// kInvalid when no node of the job's pool, up or not, could ever run it. No error while the pool has no node at all.
Status CheckFeasible(const sched::core::State& state, const JobRow& job);

// Tells a victim which job takes its room, with that job's class and team: "job 12 (production, team research) needs
// its room".
std::string PreemptionReason(const sched::core::Preempt& preempt, const JobRows& jobs);
// The same for pods that an elastic job gives up.
std::string RoomFor(sched::core::JobId beneficiary, const JobRows& jobs);

}  // namespace vrun::control
