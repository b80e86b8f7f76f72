// SPDX-License-Identifier: Apache-2.0
// The scheduler core, the one of the controller, places the pods of a fill. Each pod is a job of its own that never
// ends; one that cannot start at once is withdrawn. It knows of the pods that have come, not of those to come.
#pragma once

#include <memory>

#include "sim/pods/pod_scheduler.h"

namespace vrun::sim {

inline constexpr double kMostMoved = 0.02;

// `most_moved`: moves to make room for others, at most, of the pods placed. `models` must outlive the result.
std::unique_ptr<PodScheduler> MakeCorePods(const ModelNames& models, double most_moved);

}  // namespace vrun::sim
