// SPDX-License-Identifier: Apache-2.0
// Where a pod goes: each fitting node gets a score, and the highest wins. The baselines of the FGD paper (USENIX ATC
// 2023), with the integer scores of its artifact, because their ties decide much of the outcome.
//
// random        any node that fits, any GPU
// bestfit       least (cpu left / 128 cores + GPU left / 8) / 2 after the placement
// dotprod       least dot product of what the pod wants and what is left (Tetris, adapted: tighter is better)
// gpupacking    used GPUs before whole GPUs of used nodes before empty nodes
// gpuclustering nodes that run pods with the same kind of GPU request, then fuller nodes
// fgd           smallest increase of fragmentation
// spread        Kubernetes' defaults: least allocated and balanced cpu and memory
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "sim/pods/fragmentation.h"
#include "sim/pods/pod_nodes.h"
#include "sim/policies/baselines.h"

namespace vrun::sim {

class PodPolicy {
 public:
  virtual ~PodPolicy() = default;
  struct Choice {
    int64_t score = 0;
    int32_t gpu = -1;  // for a share
  };
  // REQUIRES Fits(node, pod). Depends only on its arguments: callers cache results.
  virtual Choice Rate(const PodNodeState& node, const Pod& pod) const = 0;
  // Whether to take any node that fits instead of the best.
  virtual bool random() const { return false; }
};

std::span<const BaselineInfo> PodPolicies();
// The policy of that name from PodPolicies; null if there is none. The model must outlive the policy.
std::unique_ptr<PodPolicy> MakePodPolicy(std::string_view name, const FragmentationModel& model);

}  // namespace vrun::sim
