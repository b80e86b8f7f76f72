// SPDX-License-Identifier: Apache-2.0
// The scheduler's journal: what the core was told, step by step, and a digest of what it decided. The same steps, given
// to a new core, bring it to the same state and give the same decisions; that is how the controller gets its scheduler
// back after a restart, and how a decision of yesterday can be looked at again.
//
// It holds what the controller tells the core and no more: a field of sched/model/model.h that the controller begins to
// use belongs here too.
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
// kCorrupt: an event that this version does not know.
Result<std::vector<sched::core::Event>> DecodeEvents(const v1::JournalStep& step);
// Of all that was decided, in order; "" of nothing.
std::string DigestOf(std::span<const sched::core::Action> actions);

// Takes the state through the steps. kAborted: it decided otherwise than the journal says (another version of the core,
// or other weights); the state is of no use then.
Status Replay(const v1::JournalSteps& steps, sched::core::State* state);

}  // namespace vrun::control
