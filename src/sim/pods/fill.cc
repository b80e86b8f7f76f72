// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/fill.h"

#include <algorithm>
#include <numeric>

#include "sim/replay/random.h"

namespace vrun::sim {
namespace {

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
    // As in the paper's artifact, counts the request per GPU, and the last pod may exceed the limit.
    if (static_cast<double>(asked + pods[next].gpu_milli) > wanted_milli) return order;
    asked += pods[next].total_milli();
    order.push_back(next);
  }
}

// The free room of the nodes, and how much of it is unusable.
class Room {
 public:
  Room(std::vector<PodNodeState>* nodes, const FragmentationModel& model) : nodes_(*nodes), model_(model) {
    for (const PodNodeState& node : nodes_) unusable_.push_back(model.Of(node));
  }
  void Take(const Pod& pod, const PodPlacement& at) { Change(&sim::Take, pod, at); }
  void Give(const Pod& pod, const PodPlacement& at) { Change(&sim::Give, pod, at); }
  double unusable() const { return std::accumulate(unusable_.begin(), unusable_.end(), 0.0); }

 private:
  void Change(void (*change)(PodNodeState*, const Pod&, uint32_t), const Pod& pod, const PodPlacement& at) {
    const auto node = static_cast<size_t>(at.node);
    change(&nodes_[node], pod, at.gpu_mask);
    unusable_[node] = model_.Of(nodes_[node]);
  }

  std::vector<PodNodeState>& nodes_;
  const FragmentationModel& model_;
  std::vector<double> unusable_;
};

}  // namespace

Result<FillResult> FillCluster(std::span<const PodNode> nodes, std::span<const Pod> pods, PodScheduler* scheduler,
                               const FragmentationModel& model, const FillConfig& config) {
  Random random(config.seed);
  std::vector<PodNodeState> states;
  for (const PodNode& node : nodes) states.push_back(MakeNodeState(node));
  random.Shuffle(&states);  // random order of nodes, because among equal scores the first wins
  double capacity = 0;
  for (const PodNodeState& node : states) capacity += static_cast<double>(node.milli_left());
  if (capacity == 0 || pods.empty()) return Error(Code::kInvalid, "a fill needs pods, and nodes with GPUs");

  const std::vector<uint32_t> order = Arrivals(pods, config.fill * capacity, &random);
  scheduler->Begin(states);
  Room room(&states, model);
  std::vector<PodPlacement> placements;  // by arrival
  FillResult result;
  double asked = 0, used = 0;
  for (uint32_t index : order) {
    const Pod& pod = pods[index];
    asked += static_cast<double>(pod.total_milli());
    const PodDecision decision = scheduler->Arrived(placements.size(), index, pod, &random);
    for (const PodDecision::Move& m : decision.moves) room.Give(pods[order[m.arrival]], placements[m.arrival]);
    for (const PodDecision::Move& m : decision.moves) {
      room.Take(pods[order[m.arrival]], m.to);
      placements[m.arrival] = m.to;
    }
    result.moved += static_cast<int64_t>(decision.moves.size());
    placements.push_back(decision.placement);
    if (decision.placement.node >= 0) {
      room.Take(pod, decision.placement);
      used += static_cast<double>(pod.total_milli());
      ++result.placed;
    }
    const double arrived = 100 * asked / capacity;
    if (result.curve.empty() || arrived >= result.curve.back().arrived_percent + 1 ||
        placements.size() == order.size()) {
      result.curve.push_back({arrived, 100 * used / capacity, 100 * room.unusable() / capacity});
    }
  }
  result.arrived = static_cast<int64_t>(order.size());
  if (result.curve.empty()) return result;
  for (size_t i = 0; i < order.size(); ++i) {
    const Pod& pod = pods[order[i]];
    if (placements[i].node < 0 || pod.gpus == 0) continue;
    result.allocated_milli[states[static_cast<size_t>(placements[i].node)].model] += pod.total_milli();
  }
  result.allocation_percent = result.curve.back().allocation_percent;
  result.fragmentation_percent = result.curve.back().fragmentation_percent;
  const double idle = 100 - result.allocation_percent;
  result.fragmentation_idle_percent = idle > 0 ? 100 * result.fragmentation_percent / idle : 0;
  result.moved_percent =
      result.placed > 0 ? 100 * static_cast<double>(result.moved) / static_cast<double>(result.placed) : 0;
  return result;
}

}  // namespace vrun::sim
