// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/core_policy.h"

#include <bit>
#include <charconv>

#include "sched/core.h"

namespace vrun::sim {
namespace {

namespace core = sched::core;

constexpr char kPool[] = "sim";
constexpr int64_t kAmple = int64_t{1} << 40;  // cpu and memory of a node: gang traces have only GPUs

std::string NodeName(int32_t node) { return "n" + std::to_string(node); }

class CorePolicy : public Policy {
 public:
  CorePolicy(const JobTrace& trace, const core::Policy& weights, const TeamShares& shares, const TeamTerms& terms)
      : trace_(trace), shares_(shares), terms_(terms), state_(weights) {}

  void Submitted(Engine& engine, JobIndex i) override {
    if (!nodes_told_) TellNodes(engine);
    events_.push_back(core::JobSubmitted{SpecOf(engine, i)});
  }
  void Ended(Engine&, JobIndex i) override { events_.push_back(core::JobEnded{IdOf(i), true}); }
  void Vacated(Engine&, JobIndex i) override { events_.push_back(core::JobStopped{IdOf(i), 0}); }
  void Failed(Engine&, JobIndex i) override { events_.push_back(core::JobStopped{IdOf(i), 0}); }
  void NodeDown(Engine&, int32_t node) override {
    if (nodes_told_) events_.push_back(core::NodeLost{NodeName(node)});
  }
  void NodeUp(Engine& engine, int32_t node) override {
    if (nodes_told_) events_.push_back(core::NodeUp{SpecOfNode(engine, node)});
  }

  void Schedule(Engine& engine) override {
    // A preemption that frees its GPUs at once is an event of the same instant.
    do {
      const std::vector<core::Action> actions = core::Step(state_, events_, engine.now());
      events_.clear();
      for (const core::Action& action : actions) Execute(engine, action);
    } while (!events_.empty());
    const core::Micros wake = core::NextWake(state_);
    if (wake != core::kNever) engine.WakeAt(wake);
  }

 private:
  static core::JobId IdOf(JobIndex i) { return core::JobId{i} + 1; }
  static JobIndex IndexOf(core::JobId id) { return static_cast<JobIndex>(id - 1); }

  void TellNodes(const Engine& engine) {
    nodes_told_ = true;
    for (const core::TeamSpec& team : terms_) events_.push_back(core::TeamSet{team});
    for (size_t t = 0; t < shares_.size(); ++t) {
      core::TeamSpec team;
      team.name = trace_.teams[t];
      team.weight = shares_[t];
      team.quotas = {{"", shares_[t] * core::kMilli}};
      events_.push_back(core::TeamSet{std::move(team)});
    }
    for (int32_t n = 0; n < engine.config().nodes; ++n) {
      if (!engine.IsDown(n)) events_.push_back(core::NodeUp{SpecOfNode(engine, n)});
    }
  }

  static core::NodeSpec SpecOfNode(const Engine& engine, int32_t node) {
    core::NodeSpec spec;
    spec.name = NodeName(node);
    spec.pool = kPool;
    spec.gpus = engine.config().gpus_per_node;
    spec.milli_cpus = kAmple;
    spec.memory_bytes = kAmple;
    return spec;
  }

  core::JobSpec SpecOf(const Engine& engine, JobIndex i) const {
    const TraceJob& job = engine.job(i);
    core::JobSpec spec;
    spec.id = IdOf(i);
    spec.pool = kPool;
    if (job.team >= 0) spec.team = trace_.teams[static_cast<size_t>(job.team)];
    spec.submitted = job.submit_us;
    if (!job.deadlines.empty()) spec.deadline = job.submit_us + job.deadlines.front().after_us;
    if (job.klass >= 0) spec.klass = static_cast<core::Class>(job.klass);
    if (job.kind >= 0) spec.name = "k" + std::to_string(job.kind);
    spec.limit = job.limit_us;
    spec.preemptible = job.preemptible;
    const int32_t per_node = engine.config().gpus_per_node;
    if (job.pods > 0 && job.gpus / job.pods <= per_node) {
      spec.roles.push_back({"pod", job.pods, {.gpus = job.gpus / job.pods}});
      return WithSavingCosts(engine, std::move(spec));
    }
    if (job.gpus >= per_node) spec.roles.push_back({"whole", job.gpus / per_node, {.gpus = per_node}});
    if (job.gpus % per_node > 0) spec.roles.push_back({"rest", 1, {.gpus = job.gpus % per_node}});
    return WithSavingCosts(engine, std::move(spec));
  }
  static core::JobSpec WithSavingCosts(const Engine& engine, core::JobSpec spec) {
    spec.checkpoint = {.on_demand = true, .save = engine.config().save_us, .restore = engine.config().restore_us};
    return spec;
  }

  void Execute(Engine& engine, const core::Action& action) {
    if (const auto* place = std::get_if<core::Place>(&action)) {
      Placement placement;
      for (const core::PodPlace& pod : place->pods) {
        int32_t node = 0;
        std::from_chars(pod.node.data() + 1, pod.node.data() + pod.node.size(), node);
        placement.push_back({node, std::popcount(pod.gpu_mask)});
      }
      engine.StartAt(IndexOf(place->job), std::move(placement));
    } else if (const auto* preempt = std::get_if<core::Preempt>(&action)) {
      const JobIndex victim = IndexOf(preempt->job);
      engine.Preempt(victim, preempt->mode == core::StopMode::kKill ? Stop::kKill : Stop::kSave);
      if (engine.record(victim).state == JobState::kWaiting) events_.push_back(core::JobStopped{preempt->job, 0});
    }
  }

  const JobTrace& trace_;
  const TeamShares shares_;
  const TeamTerms terms_;
  core::State state_;
  std::vector<core::Event> events_;
  bool nodes_told_ = false;
};

}  // namespace

std::unique_ptr<Policy> MakeCorePolicy(const JobTrace& trace, const sched::core::Policy& weights,
                                       const TeamShares& shares, const TeamTerms& terms) {
  return std::make_unique<CorePolicy>(trace, weights, shares, terms);
}

}  // namespace vrun::sim
