// SPDX-License-Identifier: Apache-2.0
#include "sim/fill.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

namespace vrun::sim {
namespace {

// The standard's distributions may differ from one library to the next; this does not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t Below(size_t n) { return static_cast<size_t>(static_cast<unsigned __int128>(engine_()) * n >> 64); }
  template <typename T>
  void Shuffle(std::vector<T>* v) {
    for (size_t i = v->size(); i > 1; --i) std::swap((*v)[i - 1], (*v)[Below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<uint32_t> Arrivals(std::span<const Pod> pods, double wanted_milli, Random* random) {
  std::vector<uint32_t> order(pods.size());
  std::iota(order.begin(), order.end(), 0);
  random->Shuffle(&order);
  int64_t asked = 0;
  for (const Pod& pod : pods) asked += pod.total_milli();
  while (static_cast<double>(asked) > wanted_milli && !order.empty()) {
    const size_t out = random->Below(order.size());
    asked -= pods[order[out]].total_milli();
    order.erase(order.begin() + static_cast<ptrdiff_t>(out));
  }
  if (asked == 0) return order;
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(random->Below(pods.size()));
    // As in the artifact of the paper, by the request for one GPU: the last pod may go beyond.
    if (static_cast<double>(asked + pods[next].gpu_milli) > wanted_milli) return order;
    asked += pods[next].total_milli();
    order.push_back(next);
  }
}

// Scores of (kind of pod, node), kept until the node changes.
class Scores {
 public:
  Scores(std::span<const Pod> pods, const PodPolicy& policy, std::vector<PodNodeState>* nodes)
      : policy_(policy), nodes_(*nodes), versions_(nodes->size(), 1) {
    std::map<std::tuple<int64_t, int64_t, int32_t, int32_t, uint64_t>, uint32_t> known;
    for (const Pod& pod : pods) {
      const auto key = std::make_tuple(pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli, pod.models);
      class_of_.push_back(known.emplace(key, static_cast<uint32_t>(known.size())).first->second);
    }
    kept_.resize(known.size());
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
  const std::vector<PodNodeState>& nodes_;
  std::vector<uint32_t> versions_;
  std::vector<uint32_t> class_of_;
  std::vector<std::vector<Kept>> kept_;
};

struct Target {
  int64_t node = -1;
  int32_t gpu = -1;
};

Target BestNode(Scores* scores, uint32_t index, const Pod& pod, size_t nodes) {
  Target best;
  int64_t best_score = 0;
  for (size_t node = 0; node < nodes; ++node) {
    const Scores::Kept& kept = scores->Of(index, pod, node);
    if (!kept.fits || (best.node >= 0 && kept.choice.score <= best_score)) continue;
    best = {static_cast<int64_t>(node), kept.choice.gpu};
    best_score = kept.choice.score;
  }
  return best;
}

Target AnyNode(std::span<const PodNodeState> nodes, const Pod& pod, Random* random) {
  Target any;
  size_t seen = 0;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (Fits(nodes[node], pod) && random->Below(++seen) == 0) any.node = static_cast<int64_t>(node);
  }
  if (any.node < 0 || !IsShare(pod)) return any;
  seen = 0;
  const PodNodeState& node = nodes[static_cast<size_t>(any.node)];
  for (int32_t gpu = 0; gpu < node.gpus; ++gpu) {
    if (node.gpu_left[gpu] >= pod.gpu_milli && random->Below(++seen) == 0) any.gpu = gpu;
  }
  return any;
}

}  // namespace

Result<FillResult> FillCluster(std::span<const PodNode> nodes, std::span<const Pod> pods, const PodPolicy& policy,
                               const FragmentationModel& model, const FillConfig& config) {
  Random random(config.seed);
  std::vector<PodNodeState> states;
  for (const PodNode& node : nodes) states.push_back(MakeNodeState(node));
  random.Shuffle(&states);  // equal scores: the first wins
  double capacity = 0;
  for (const PodNodeState& node : states) capacity += static_cast<double>(node.milli_left());
  if (capacity == 0 || pods.empty()) return Error(Code::kInvalid, "a fill needs pods, and nodes with GPUs");

  const std::vector<uint32_t> order = Arrivals(pods, config.fill * capacity, &random);
  Scores scores(pods, policy, &states);
  std::vector<double> unusable;
  for (const PodNodeState& node : states) unusable.push_back(model.Of(node));
  FillResult result;
  double asked = 0, used = 0;
  for (uint32_t index : order) {
    const Pod& pod = pods[index];
    asked += static_cast<double>(pod.total_milli());
    ++result.arrived;
    const Target target =
        policy.random() ? AnyNode(states, pod, &random) : BestNode(&scores, index, pod, states.size());
    if (target.node >= 0) {
      const size_t node = static_cast<size_t>(target.node);
      Take(&states[node], pod, target.gpu);
      scores.Changed(node);
      unusable[node] = model.Of(states[node]);
      used += static_cast<double>(pod.total_milli());
      if (pod.gpus > 0) result.allocated_milli[states[node].model] += pod.total_milli();
      ++result.placed;
    }
    const double arrived = 100 * asked / capacity;
    if (result.curve.empty() || arrived >= result.curve.back().arrived_percent + 1 ||
        result.arrived == int64_t(order.size())) {
      const double fragments = std::accumulate(unusable.begin(), unusable.end(), 0.0);
      result.curve.push_back({arrived, 100 * used / capacity, 100 * fragments / capacity});
    }
  }
  if (result.curve.empty()) return result;
  result.allocation_percent = result.curve.back().allocation_percent;
  result.fragmentation_percent = result.curve.back().fragmentation_percent;
  const double idle = 100 - result.allocation_percent;
  result.fragmentation_idle_percent = idle > 0 ? 100 * result.fragmentation_percent / idle : 0;
  return result;
}

}  // namespace vrun::sim
