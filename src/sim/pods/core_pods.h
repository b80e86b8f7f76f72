// SPDX-License-Identifier: Apache-2.0
// The controller's scheduler core places the pods of a fill. Each pod is its own job that never ends; a job that cannot
// start at once is withdrawn. The core sees pods only when they arrive.
#pragma once

#include <memory>

#include "sim/pods/pod_scheduler.h"

namespace vrun::sim {

inline constexpr double kMostMoved = 0.02;

// `most_moved`: the most moves that may make room for others, as a share of the pods placed. `models` must outlive the
// result.
std::unique_ptr<PodScheduler> MakeCorePods(const ModelNames& models, double most_moved);

}  // namespace vrun::sim
