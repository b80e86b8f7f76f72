// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/pod_policies.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vrun::sim {
namespace {

constexpr int64_t kMaxScore = 100;  // of Kubernetes' framework
constexpr double kMaxCpu = 128000;  // milli, of the largest node of the trace
constexpr int64_t kMaxGpu = 8 * kMilliPerGpu;

int32_t GpuFor(const PodNodeState& node, const Pod& pod) { return IsShare(pod) ? TightestGpu(node, pod) : -1; }

class RandomPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState&, const Pod&) const override { return {}; }
  bool random() const override { return true; }
};

class BestFitPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    const double cpu = static_cast<double>(node.cpu_left - pod.cpu_milli) / kMaxCpu;
    const double gpu = static_cast<double>(node.milli_left() - pod.total_milli()) / static_cast<double>(kMaxGpu);
    return {static_cast<int64_t>((1.0 - (cpu * 0.5 + gpu * 0.5)) * kMaxScore), GpuFor(node, pod)};
  }
};

class DotProductPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    const double cpu = static_cast<double>(node.cpu_left) / kMaxCpu * (static_cast<double>(pod.cpu_milli) / kMaxCpu);
    const double gpu = static_cast<double>(node.milli_left()) / static_cast<double>(kMaxGpu) *
                       (static_cast<double>(pod.total_milli()) / static_cast<double>(kMaxGpu));
    return {static_cast<int64_t>(kMaxScore * (1 - (cpu + gpu) / 2)), GpuFor(node, pod)};
  }
};

class GpuPackingPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    if (pod.gpus == 0) return {};
    const int32_t gpu = GpuFor(node, pod);
    const int64_t whole = node.whole_gpus_left();
    if (whole == node.gpus) return {std::max(kMaxScore / 3 - whole, whole), gpu};
    std::array<int32_t, kMostGpusPerNode> sorted = node.gpu_left;
    std::fill(sorted.begin() + node.gpus, sorted.end(), std::numeric_limits<int32_t>::max());
    std::sort(sorted.begin(), sorted.end());
    int32_t wanted = pod.gpus;
    int64_t whole_used = 0, free_of_used = 0;
    for (int32_t i = 0; i < node.gpus && wanted > 0; ++i) {
      if (sorted[i] < pod.gpu_milli) continue;
      --wanted;
      whole_used += sorted[i] == kMilliPerGpu;
      free_of_used += sorted[i] * 100 / kMilliPerGpu;
    }
    if (whole_used > 0) return {std::max(kMaxScore / 2 - whole_used, kMaxScore / 3), gpu};
    return {std::max(kMaxScore - free_of_used / 10, kMaxScore / 2), gpu};
  }
};

class GpuClusteringPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    if (pod.gpus == 0) return {};
    int32_t kinds = 0;
    for (int32_t kind = 1; kind < kPodKinds; ++kind) kinds += node.kinds[kind] > 0;
    const int64_t full = kMaxScore / 4 * (kMaxGpu - node.milli_left()) / kMaxGpu;
    const int64_t quarter = node.kinds[KindOf(pod)] > 0 ? (kinds == 1 ? 3 : 2) : (kinds == 0 ? 1 : 0);
    return {full + kMaxScore * quarter / 4, GpuFor(node, pod)};
  }
};

class FgdPolicy : public PodPolicy {
 public:
  explicit FgdPolicy(const FragmentationModel& model) : model_(model) {}
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    const double before = model_.Of(node);
    const int64_t cpu_left = node.cpu_left - pod.cpu_milli;
    if (!IsShare(pod)) {
      PodNodeState after = node;
      Take(&after, pod, FirstWholeGpus(node, pod.gpus));
      return {Score(before - model_.Of(after)), -1};
    }
    Choice best;
    std::array<int32_t, kMostGpusPerNode> lefts = node.gpu_left;
    for (int32_t i = 0; i < node.gpus; ++i) {
      if (lefts[i] < pod.gpu_milli) continue;
      lefts[i] -= pod.gpu_milli;
      const int64_t score =
          Score(before - model_.Of(node.model, cpu_left, {lefts.data(), static_cast<size_t>(node.gpus)}));
      lefts[i] += pod.gpu_milli;
      if (best.gpu < 0 || score > best.score) best = {score, i};
    }
    return best;
  }

 private:
  static int64_t Score(double descent) {
    return static_cast<int64_t>(1.0 / (1.0 + std::exp(-descent / kMilliPerGpu)) * kMaxScore);
  }
  const FragmentationModel& model_;
};

class SpreadPolicy : public PodPolicy {
 public:
  Choice Rate(const PodNodeState& node, const Pod& pod) const override {
    const int64_t cpu = node.cpu_left - pod.cpu_milli, memory = node.memory_left - pod.memory_mib;
    const int64_t free = (Percent(cpu, node.cpu_capacity) + Percent(memory, node.memory_capacity)) / 2;
    const double skew = std::abs(Part(cpu, node.cpu_capacity) - Part(memory, node.memory_capacity));
    return {free + static_cast<int64_t>((1 - skew) * kMaxScore), GpuFor(node, pod)};
  }

 private:
  static int64_t Percent(int64_t part, int64_t whole) { return whole == 0 ? 0 : part * kMaxScore / whole; }
  static double Part(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

constexpr BaselineInfo kPodPolicies[] = {
    {"random", "any node that fits"},
    {"dotprod", "least dot product of request and room"},
    {"gpuclustering", "beside pods alike in their GPU request"},
    {"gpupacking", "used GPUs first, then used nodes"},
    {"bestfit", "least cpu and GPU left"},
    {"fgd", "steepest descent of fragmentation"},
    {"spread", "Kubernetes' defaults: least allocated, balanced"},
};

}  // namespace

std::span<const BaselineInfo> PodPolicies() { return kPodPolicies; }

std::unique_ptr<PodPolicy> MakePodPolicy(std::string_view name, const FragmentationModel& model) {
  if (name == "random") return std::make_unique<RandomPolicy>();
  if (name == "bestfit") return std::make_unique<BestFitPolicy>();
  if (name == "dotprod") return std::make_unique<DotProductPolicy>();
  if (name == "gpupacking") return std::make_unique<GpuPackingPolicy>();
  if (name == "gpuclustering") return std::make_unique<GpuClusteringPolicy>();
  if (name == "fgd") return std::make_unique<FgdPolicy>(model);
  if (name == "spread") return std::make_unique<SpreadPolicy>();
  return nullptr;
}

}  // namespace vrun::sim
