// SPDX-License-Identifier: Apache-2.0
// The fragmentation measure of FGD ("Beware of Fragmentation", USENIX ATC 2023, section 3): for a node, the expected
// idle GPU share that a pod drawn at random from the workload could not use there.
//
//   F(node) = sum over typical pods m of p_m F_m(node)
//   F_m     = all idle GPU of the node when m cannot run on it, or needs no GPU;
//             otherwise the idle GPU on those of its GPUs that have less left than m asks of one
//
// Typical pods are the most frequent ones (cpu, GPUs, share, models), which together make up 95 % of the workload.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/pods/pod_nodes.h"

namespace vrun::sim {

class FragmentationModel {
 public:
  explicit FragmentationModel(std::span<const Pod> workload, double popularity = 0.95);

  // Expected unusable GPU-milli of a node.
  double Of(const PodNodeState& node) const { return Of(node.model, node.cpu_left, node.lefts()); }
  double Of(int32_t model, int64_t cpu_left, std::span<const int32_t> lefts) const;

 private:
  // Typical pods that differ only in cpu, so that one search finds those that are admissible.
  struct Group {
    int32_t gpus = 0;
    int32_t milli = 0;
    uint64_t models = 0;
    std::vector<int64_t> cpus;  // ascending
    std::vector<double> up_to;  // probability of those with cpu <= cpus[i]
  };
  std::vector<Group> groups_;
  double without_gpu_ = 0;  // probability
};

}  // namespace vrun::sim
