// SPDX-License-Identifier: Apache-2.0
// Fills a cluster with pods that never leave, and measures how much of its GPUs can be allocated: the protocol of the
// FGD paper. The pods of the table arrive in random order. If they ask for less than `fill` of the GPUs, random pods of
// the table are added until they do; if they ask for more, random pods are left out. Each pod is placed on arrival or
// rejected for good.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/pods/pod_scheduler.h"

namespace vrun::sim {

struct FillConfig {
  double fill = 1.3;  // GPU requested / GPU capacity
  uint64_t seed = 42;
};

struct FillPoint {
  double arrived_percent = 0;  // GPU requested so far / GPU capacity
  double allocation_percent = 0;
  double fragmentation_percent = 0;
};

struct FillResult {
  double allocation_percent = 0;          // GPU allocated / GPU capacity
  double fragmentation_percent = 0;       // expected unusable GPU / GPU capacity
  double fragmentation_idle_percent = 0;  // expected unusable GPU / GPU left
  int64_t arrived = 0;
  int64_t placed = 0;
  int64_t moved = 0;                           // moves of placed pods
  double moved_percent = 0;                    // of the pods placed
  std::map<int32_t, int64_t> allocated_milli;  // by the nodes' model
  std::vector<FillPoint> curve;                // one point per percent arrived
};

// kInvalid if a span is empty or the nodes have no GPUs. The model must be made from these pods.
Result<FillResult> FillCluster(std::span<const PodNode> nodes, std::span<const Pod> pods, PodScheduler* scheduler,
                               const FragmentationModel& model, const FillConfig& config);

}  // namespace vrun::sim
