// SPDX-License-Identifier: Apache-2.0
// The scheduler's journal: the events given to the core, step by step, and a digest of its decisions. Replaying the
// steps into a new core restores the same state and gives the same decisions. The controller restores its scheduler
// this way after a restart, and an old decision can be examined again.
//
// It records only what the controller tells the core. When the controller begins to use another field of
// sched/model/model.h, add the field here too.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/journal.pb.h"
#include "sched/core.h"

namespace vrun::control {

v1::JournalStep EncodeStep(sched::core::Micros now, std::span<const sched::core::Event> events,
                           std::span<const sched::core::Action> actions);
// kCorrupt: the step has an event that this version does not know.
Result<std::vector<sched::core::Event>> DecodeEvents(const v1::JournalStep& step);
// Digest of all decisions, in order; "" if there are none.
std::string DigestOf(std::span<const sched::core::Action> actions);

// Applies the steps to the state. kAborted: a decision differs from the journal's (another version of the core, or
// other weights); do not use the state then.
Status Replay(const v1::JournalSteps& steps, sched::core::State* state);

}  // namespace vrun::control
