// SPDX-License-Identifier: Apache-2.0
// Why no node has the GPUs that a job asks for, in words.
#pragma once

#include <string>
#include <vector>

#include "control/store/store.h"
#include "sched/engine/inspect.h"

namespace vrun::control {

// Pods of the job that find their GPUs on the node now, or when it is empty, whatever else they need.
int32_t PodsByGpus(const Needs& needs, const sched::core::NodeRoom& node, bool empty);

// For a share, an instance or memory of a GPU, if no GPU of these nodes has room for it: "needs a 1g.10gb: 3 GPUs are
// cut otherwise, 2 are not in MIG mode". "" for whole GPUs.
std::string WhyNoGpu(const Needs& needs, const std::vector<sched::core::NodeRoom>& nodes, bool empty);

}  // namespace vrun::control
