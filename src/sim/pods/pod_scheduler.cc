// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/pod_scheduler.h"

#include <map>
#include <tuple>

#include "base/escape.h"
#include "sim/pods/core_pods.h"

namespace vrun::sim {
namespace {

// Scores of (kind of pod, node), cached until the node changes.
class Scores {
 public:
  Scores(std::span<const Pod> pods, const PodPolicy& policy) : policy_(policy) {
    std::map<std::tuple<int64_t, int64_t, int32_t, int32_t, uint64_t>, uint32_t> known;
    for (const Pod& pod : pods) {
      const auto key = std::make_tuple(pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli, pod.models);
      class_of_.push_back(known.emplace(key, static_cast<uint32_t>(known.size())).first->second);
    }
    kept_.resize(known.size());
  }

  void Begin(std::span<const PodNodeState> nodes) {
    nodes_ = nodes;
    versions_.assign(nodes.size(), 1);
  }

  struct Kept {
    uint32_t version = 0;
    bool fits = false;
    PodPolicy::Choice choice;
  };
  const Kept& Of(uint32_t pod_index, const Pod& pod, size_t node) {
    std::vector<Kept>& row = kept_[class_of_[pod_index]];
    if (row.empty()) row.resize(nodes_.size());
    Kept& kept = row[node];
    if (kept.version != versions_[node]) {
      kept.version = versions_[node];
      kept.fits = Fits(nodes_[node], pod);
      if (kept.fits) kept.choice = policy_.Rate(nodes_[node], pod);
    }
    return kept;
  }
  void Changed(size_t node) { ++versions_[node]; }

 private:
  const PodPolicy& policy_;
  std::span<const PodNodeState> nodes_;
  std::vector<uint32_t> versions_;
  std::vector<uint32_t> class_of_;
  std::vector<std::vector<Kept>> kept_;
};

class ScoredScheduler : public PodScheduler {
 public:
  ScoredScheduler(std::unique_ptr<PodPolicy> policy, std::span<const Pod> pods)
      : policy_(std::move(policy)), scores_(pods, *policy_) {}

  void Begin(std::span<const PodNodeState> nodes) override {
    nodes_ = nodes;
    scores_.Begin(nodes);
  }

  PodDecision Arrived(uint64_t, uint32_t index, const Pod& pod, Random* random) override {
    PodDecision out;
    int32_t gpu = -1;
    out.placement.node = policy_->random() ? AnyNode(pod, random, &gpu) : BestNode(index, pod, &gpu);
    if (out.placement.node < 0) return out;
    const auto node = static_cast<size_t>(out.placement.node);
    out.placement.gpu_mask = IsShare(pod) ? 1u << gpu : FirstWholeGpus(nodes_[node], pod.gpus);
    scores_.Changed(node);
    return out;
  }

 private:
  int64_t BestNode(uint32_t index, const Pod& pod, int32_t* gpu) {
    int64_t best = -1;
    int64_t best_score = 0;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      const Scores::Kept& kept = scores_.Of(index, pod, node);
      if (!kept.fits || (best >= 0 && kept.choice.score <= best_score)) continue;
      best = static_cast<int64_t>(node);
      *gpu = kept.choice.gpu;
      best_score = kept.choice.score;
    }
    return best;
  }

  int64_t AnyNode(const Pod& pod, Random* random, int32_t* gpu) {
    int64_t any = -1;
    size_t seen = 0;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (Fits(nodes_[node], pod) && random->Below(++seen) == 0) any = static_cast<int64_t>(node);
    }
    if (any < 0 || !IsShare(pod)) return any;
    seen = 0;
    const PodNodeState& node = nodes_[static_cast<size_t>(any)];
    for (int32_t i = 0; i < node.gpus; ++i) {
      if (node.gpu_left[i] >= pod.gpu_milli && random->Below(++seen) == 0) *gpu = i;
    }
    return any;
  }

  std::unique_ptr<PodPolicy> policy_;
  Scores scores_;
  std::span<const PodNodeState> nodes_;
};

}  // namespace

Result<std::unique_ptr<PodScheduler>> MakePodScheduler(std::string_view name, std::span<const Pod> pods,
                                                       const ModelNames& models, const FragmentationModel& model) {
  if (name == kCorePods.name) return MakeCorePods(models, 0);
  if (name == kCorePodsMoved.name) return MakeCorePods(models, kMostMoved);
  if (std::unique_ptr<PodPolicy> policy = MakePodPolicy(name, model)) {
    return std::make_unique<ScoredScheduler>(std::move(policy), pods);
  }
  std::string known = std::string(kCorePods.name) + ", " + std::string(kCorePodsMoved.name);
  for (const BaselineInfo& p : PodPolicies()) known += ", " + std::string(p.name);
  return Error(Code::kInvalid, "policy '" + Escape(name) + "': unknown for pods: write one of " + known);
}

}  // namespace vrun::sim
