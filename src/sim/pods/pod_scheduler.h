// SPDX-License-Identifier: Apache-2.0
// Decides where the pods of a fill go (fill.h): a baseline's scores, or our scheduler core. One object serves one fill.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/pods/pod_policies.h"
#include "sim/replay/random.h"

namespace vrun::sim {

// The place of one pod.
struct PodPlacement {
  int64_t node = -1;      // -1: it is rejected
  uint32_t gpu_mask = 0;  // of a share: the one GPU
};

struct PodDecision {
  PodPlacement placement;
  struct Move {
    uint64_t arrival = 0;
    PodPlacement to;
  };
  std::vector<Move> moves;  // of placed pods; all of them leave before any is placed again
};

class PodScheduler {
 public:
  virtual ~PodScheduler() = default;
  // Called before the first arrival. The span stays valid, and its owner updates it after each decision.
  virtual void Begin(std::span<const PodNodeState> nodes) = 0;
  // `index`: the pod's row in the table; `arrival` counts from 0.
  virtual PodDecision Arrived(uint64_t arrival, uint32_t index, const Pod& pod, Random* random) = 0;
};

inline constexpr BaselineInfo kCorePods = {"vrun", "our scheduler, no moves"};
inline constexpr BaselineInfo kCorePodsMoved = {"vrun-moves", "our scheduler; it may move one pod in 50"};

// `name`: one of PodPolicies, or one of ours; kInvalid lists the known names. All arguments must outlive the scheduler.
Result<std::unique_ptr<PodScheduler>> MakePodScheduler(std::string_view name, std::span<const Pod> pods,
                                                       const ModelNames& models, const FragmentationModel& model);

}  // namespace vrun::sim
