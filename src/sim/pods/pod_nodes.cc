// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/pod_nodes.h"

#include <bit>

#include "base/result.h"

namespace vrun::sim {

int32_t KindOf(const Pod& pod) {
  if (pod.gpus == 0) return 0;
  return IsShare(pod) ? 1 : 1 + pod.gpus;
}

int64_t PodNodeState::milli_left() const {
  int64_t sum = 0;
  for (int32_t left : lefts()) sum += left;
  return sum;
}

int32_t PodNodeState::whole_gpus_left() const {
  int32_t count = 0;
  for (int32_t left : lefts()) count += left == kMilliPerGpu;
  return count;
}

PodNodeState MakeNodeState(const PodNode& node) {
  PodNodeState state;
  state.cpu_capacity = state.cpu_left = node.cpu_milli;
  state.memory_capacity = state.memory_left = node.memory_mib;
  state.gpus = node.gpus;
  state.model = node.model;
  for (int32_t i = 0; i < node.gpus; ++i) state.gpu_left[i] = kMilliPerGpu;
  return state;
}

bool Fits(const PodNodeState& node, const Pod& pod) {
  if (node.cpu_left < pod.cpu_milli || node.memory_left < pod.memory_mib) return false;
  if (pod.gpus == 0) return true;
  if (pod.models != 0 && (node.model < 0 || (pod.models >> node.model & 1) == 0)) return false;
  int32_t enough = 0;
  for (int32_t left : node.lefts()) enough += left >= pod.gpu_milli;
  return enough >= pod.gpus;
}

int32_t TightestGpu(const PodNodeState& node, const Pod& pod) {
  int32_t best = -1;
  for (int32_t i = 0; i < node.gpus; ++i) {
    const int32_t left = node.gpu_left[i];
    if (left >= pod.gpu_milli && (best < 0 || left < node.gpu_left[best])) best = i;
  }
  return best;
}

uint32_t FirstWholeGpus(const PodNodeState& node, int32_t count) {
  uint32_t mask = 0;
  for (int32_t i = 0; i < node.gpus && count > 0; ++i) {
    if (node.gpu_left[i] != kMilliPerGpu) continue;
    mask |= 1u << i;
    --count;
  }
  VRUN_CHECK(count == 0);
  return mask;
}

void Take(PodNodeState* node, const Pod& pod, uint32_t gpu_mask) {
  VRUN_CHECK(std::popcount(gpu_mask) == pod.gpus && gpu_mask >> node->gpus == 0);
  node->cpu_left -= pod.cpu_milli;
  node->memory_left -= pod.memory_mib;
  ++node->kinds[KindOf(pod)];
  for (; gpu_mask != 0; gpu_mask &= gpu_mask - 1) {
    int32_t& left = node->gpu_left[std::countr_zero(gpu_mask)];
    VRUN_CHECK(left >= pod.gpu_milli);
    left -= pod.gpu_milli;
  }
}

void Give(PodNodeState* node, const Pod& pod, uint32_t gpu_mask) {
  node->cpu_left += pod.cpu_milli;
  node->memory_left += pod.memory_mib;
  --node->kinds[KindOf(pod)];
  for (; gpu_mask != 0; gpu_mask &= gpu_mask - 1) node->gpu_left[std::countr_zero(gpu_mask)] += pod.gpu_milli;
}

}  // namespace vrun::sim
