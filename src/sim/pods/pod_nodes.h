// SPDX-License-Identifier: Apache-2.0
// What is left on the nodes of a cluster whose pods take whole GPUs or a share of one. Value types.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/pods/pods.h"

namespace vrun::sim {

// Kinds of pods by GPU request: none, a share, and 1 to 8 whole GPUs.
inline constexpr int32_t kPodKinds = 2 + kMostGpusPerNode;
int32_t KindOf(const Pod& pod);

struct PodNodeState {
  int64_t cpu_capacity = 0, cpu_left = 0;        // milli
  int64_t memory_capacity = 0, memory_left = 0;  // MiB
  int32_t gpus = 0;
  int32_t model = -1;
  std::array<int32_t, kMostGpusPerNode> gpu_left{};  // milli, of the first `gpus`
  std::array<int32_t, kPodKinds> kinds{};            // number of pods by KindOf

  std::span<const int32_t> lefts() const { return {gpu_left.data(), static_cast<size_t>(gpus)}; }
  int64_t milli_left() const;
  int32_t whole_gpus_left() const;
};

PodNodeState MakeNodeState(const PodNode& node);
bool Fits(const PodNodeState& node, const Pod& pod);
// The GPU with the least room that fits a share. REQUIRES Fits and a pod that asks for a share.
int32_t TightestGpu(const PodNodeState& node, const Pod& pod);
// A mask of the first GPUs that are entirely free. REQUIRES `count` such GPUs.
uint32_t FirstWholeGpus(const PodNodeState& node, int32_t count);
// Takes cpu, memory and GPUs: a share of the one in the mask, or all of the mask. REQUIRES that they are free.
void Take(PodNodeState* node, const Pod& pod, uint32_t gpu_mask);
// Gives back what Take took.
void Give(PodNodeState* node, const Pod& pod, uint32_t gpu_mask);
inline bool IsShare(const Pod& pod) { return pod.gpus == 1 && pod.gpu_milli < kMilliPerGpu; }

}  // namespace vrun::sim
