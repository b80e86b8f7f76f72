// SPDX-License-Identifier: Apache-2.0
// Policies without preemption: a queue in a fixed order.
#pragma once

#include <memory>

#include "sim/replay/engine.h"

namespace vrun::sim {

enum class QueueOrder { kArrival, kDuration, kGpuTime, kDeadline };

// `blocking`: the first job that does not fit holds up the rest.
std::unique_ptr<Policy> MakeQueuePolicy(QueueOrder order, bool blocking);
// EASY backfill; estimates are durations times 1 to `padding`, uniform.
std::unique_ptr<Policy> MakeEasyPolicy(double padding);

}  // namespace vrun::sim
