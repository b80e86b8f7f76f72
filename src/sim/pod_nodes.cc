// SPDX-License-Identifier: Apache-2.0
#include "sim/pod_nodes.h"

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

void Take(PodNodeState* node, const Pod& pod, int32_t gpu) {
  node->cpu_left -= pod.cpu_milli;
  node->memory_left -= pod.memory_mib;
  ++node->kinds[KindOf(pod)];
  if (IsShare(pod)) {
    VRUN_CHECK(gpu >= 0 && gpu < node->gpus && node->gpu_left[gpu] >= pod.gpu_milli);
    node->gpu_left[gpu] -= pod.gpu_milli;
    return;
  }
  int32_t wanted = pod.gpus;
  for (int32_t i = 0; i < node->gpus && wanted > 0; ++i) {
    if (node->gpu_left[i] != kMilliPerGpu) continue;
    node->gpu_left[i] = 0;
    --wanted;
  }
  VRUN_CHECK(wanted == 0);
}

}  // namespace vrun::sim
