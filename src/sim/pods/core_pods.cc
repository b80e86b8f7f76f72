// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/core_pods.h"

#include <algorithm>
#include <charconv>

#include "sched/core.h"

namespace vrun::sim {
namespace {

namespace core = sched::core;

constexpr char kPool[] = "sim";
// Pods arrive one at a time.
constexpr core::Micros kBetweenArrivals = core::kSecond;
// Most moves of one plan.
constexpr int64_t kMostAtOnce = 8;

core::Policy WeightsOf(bool moves) {
  core::Policy weights;
  weights.preemption = moves;
  weights.theta = int64_t{1} << 40;  // moving is free here; a pod with no other room stays
  return weights;
}

class CorePods : public PodScheduler {
 public:
  CorePods(const ModelNames& models, double most_moved)
      : models_(models), most_moved_(most_moved), state_(WeightsOf(most_moved > 0)) {}

  void Begin(std::span<const PodNodeState> nodes) override {
    std::vector<core::Event> events;
    for (size_t i = 0; i < nodes.size(); ++i) {
      core::NodeSpec spec;
      spec.name = "n" + std::to_string(i);
      spec.pool = kPool;
      if (nodes[i].model >= 0) spec.gpu_type = models_.names[static_cast<size_t>(nodes[i].model)];
      spec.gpus = nodes[i].gpus;
      spec.milli_cpus = nodes[i].cpu_capacity;
      spec.memory_bytes = nodes[i].memory_capacity << 20;
      events.push_back(core::NodeUp{std::move(spec)});
    }
    core::Step(state_, events, now_);
  }

  PodDecision Arrived(uint64_t arrival, uint32_t, const Pod& pod, Random*) override {
    now_ += kBetweenArrivals;
    const core::JobId id = arrival + 1;
    PodDecision decision;
    std::vector<core::Event> events = {core::JobSubmitted{SpecOf(id, pod)}};
    // Pods told to leave are gone at once, and then the others start.
    while (!events.empty()) {
      const std::vector<core::Action> actions = core::Step(state_, events, now_);
      events.clear();
      for (const core::Action& action : actions) {
        if (const auto* preempt = std::get_if<core::Preempt>(&action)) {
          events.push_back(core::JobStopped{preempt->job, 0});
        } else if (const auto* place = std::get_if<core::Place>(&action)) {
          const PodPlacement placement = PlacementOf(place->pods.front());
          if (place->job == id) {
            decision.placement = placement;
          } else {
            decision.moves.push_back({place->job - 1, placement});
          }
        }
      }
    }
    moved_ += static_cast<int64_t>(decision.moves.size());
    if (decision.placement.node >= 0) {
      ++placed_;
    } else {
      core::Step(state_, std::vector<core::Event>{core::JobEnded{id, false, false}}, now_);
    }
    return decision;
  }

 private:
  bool MayMoveOthers() const {
    return static_cast<double>(moved_ + kMostAtOnce) <= most_moved_ * static_cast<double>(placed_);
  }

  core::JobSpec SpecOf(core::JobId id, const Pod& pod) const {
    core::JobSpec spec;
    spec.id = id;
    spec.pool = kPool;
    // A pod of lower class moves no other pods.
    spec.klass = MayMoveOthers() ? core::Class::kTraining : core::Class::kExperiment;
    spec.preemptible = spec.klass == core::Class::kTraining;
    core::Request request;
    if (IsShare(pod)) {
      request.gpu_milli = pod.gpu_milli;
    } else {
      request.gpus = pod.gpus;
    }
    request.milli_cpus = pod.cpu_milli;
    request.memory_bytes = pod.memory_mib << 20;
    spec.roles = {{"pod", 1, request}};
    for (size_t i = 0; i < models_.names.size() && pod.models != 0; ++i) {
      if ((pod.models >> i & 1) != 0) spec.gpu_types.push_back(models_.names[i]);
    }
    spec.checkpoint = {.on_demand = true, .save = 0, .restore = 0};
    return spec;
  }

  static PodPlacement PlacementOf(const core::PodPlace& pod) {
    PodPlacement out{0, pod.gpu_mask};
    std::from_chars(pod.node.data() + 1, pod.node.data() + pod.node.size(), out.node);
    return out;
  }

  const ModelNames& models_;
  const double most_moved_;
  core::State state_;
  core::Micros now_ = 0;
  int64_t placed_ = 0, moved_ = 0;
};

}  // namespace

std::unique_ptr<PodScheduler> MakeCorePods(const ModelNames& models, double most_moved) {
  return std::make_unique<CorePods>(models, most_moved);
}

}  // namespace vrun::sim
