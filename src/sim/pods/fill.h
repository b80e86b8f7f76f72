// SPDX-License-Identifier: Apache-2.0
// Fills a cluster with pods that never leave, and measures how much of its GPUs could be handed out: the protocol of
// the FGD paper. The pods of the table arrive in random order; when they ask for less than `fill` of the GPUs, pods
// drawn from the table at random follow until they do; when they ask for more, random ones are left out. Each is placed
// on arrival or turned away for good.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/pods/pod_scheduler.h"

namespace vrun::sim {

struct FillConfig {
  double fill = 1.3;  // GPU asked for / GPU there is
  uint64_t seed = 42;
};

struct FillPoint {
  double arrived_percent = 0;  // GPU asked for so far / GPU there is
  double allocation_percent = 0;
  double fragmentation_percent = 0;
};

struct FillResult {
  double allocation_percent = 0;          // GPU handed out / GPU there is
  double fragmentation_percent = 0;       // expected unusable GPU / GPU there is
  double fragmentation_idle_percent = 0;  // the same / GPU left
  int64_t arrived = 0;
  int64_t placed = 0;
  int64_t moved = 0;                           // moves of pods that had been placed
  double moved_percent = 0;                    // of those placed
  std::map<int32_t, int64_t> allocated_milli;  // by the nodes' model
  std::vector<FillPoint> curve;                // one point a percent arrived
};

// Both spans are not empty, and the nodes have GPUs; else kInvalid. The model is the one of these pods.
Result<FillResult> FillCluster(std::span<const PodNode> nodes, std::span<const Pod> pods, PodScheduler* scheduler,
                               const FragmentationModel& model, const FillConfig& config);

}  // namespace vrun::sim
