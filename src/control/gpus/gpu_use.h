// SPDX-License-Identifier: Apache-2.0
// Sums of what pods used of their GPUs.
#pragma once

#include <vector>

#include "control/store/store.h"
#include "proto/common.pb.h"

namespace vrun::control {

// Adds the use of the pods of one attempt, which ran at the same time. Of several attempts the peak is the largest
// one's, and the latest values are those of the last. False: nothing is known of them.
bool AddUse(const std::vector<PodRow>& pods, v1::GpuUsage* sum);

}  // namespace vrun::control
