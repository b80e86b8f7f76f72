// SPDX-License-Identifier: Apache-2.0
#include "control/state/scheduler.h"

#include <algorithm>

#include "control/gpus/gpu_needs.h"
#include "control/journal/journal.h"
#include "control/state/gang.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

constexpr int64_t kMostBytes = int64_t{1} << 50;  // keeps sums over all jobs of a node far from overflow

core::Level LevelOf(v1::TopologyLevel level, core::Level otherwise) {
  if (level < v1::LEVEL_NODE || level > v1::LEVEL_CLUSTER) return otherwise;
  return static_cast<core::Level>(level - v1::LEVEL_NODE);
}

core::Micros MicrosOf(double seconds) {
  constexpr double kMostSeconds = 1 << 30;
  return static_cast<core::Micros>(std::clamp(seconds, 0.0, kMostSeconds) * core::kSecond);
}

template <typename Texts>
std::vector<std::string> Strings(const Texts& texts) {
  return {texts.begin(), texts.end()};
}

// What a job of one role adds to it: where its pods lie.
void SetBlocks(const v1::Scheduling& s, core::Role* role) {
  role->segment = static_cast<int32_t>(std::min<uint32_t>(s.segment(), 1'000'000));
  role->spread = s.spread();
  role->segment_level = LevelOf(s.segment_level(), s.spread() ? core::Level::kNode : core::Level::kIsland);
}

void SetCheckpoint(const v1::Scheduling& s, core::Checkpoint* out) {
  out->on_demand = s.saves();
  if (s.has_save_seconds()) out->save = MicrosOf(s.save_seconds());
  if (s.has_restore_seconds()) out->restore = MicrosOf(s.restore_seconds());
  if (s.has_resize_seconds()) out->resize = MicrosOf(s.resize_seconds());
  out->period = MicrosOf(s.save_period_seconds());
}

}  // namespace

core::Class ClassOf(v1::JobClass klass) {
  if (klass < v1::SCAVENGER || klass > v1::INFERENCE) return core::Class::kTraining;
  return static_cast<core::Class>(klass - v1::SCAVENGER);
}

core::JobSpec SpecOf(const JobRow& job) {
  core::JobSpec spec;
  spec.id = job.id;
  spec.pool = job.pool;
  spec.team = job.scheduling.team();
  spec.user = job.user;
  spec.name = job.name;
  spec.klass = ClassOf(job.scheduling.class_());
  spec.preemptible = job.scheduling.requeue();
  core::Request request;
  SetGpus(job.needs, &request);
  request.milli_cpus = job.needs.milli_cpus;
  request.memory_bytes = std::min(job.needs.memory_bytes, kMostBytes);
  request.distinct = PodsAsked(job) > 1;  // as in Slurm, so many nodes are asked for
  core::Role role{"worker", static_cast<int32_t>(PodsAsked(job)), request};
  if (job.gang.min_pods() < job.gang.pods()) role.min_pods = static_cast<int32_t>(job.gang.min_pods());
  SetBlocks(job.scheduling, &role);
  spec.roles = {std::move(role)};
  spec.gpu_types = Strings(job.scheduling.gpu_types());
  if (spec.gpu_types.empty() && !job.needs.gpu_type.empty()) spec.gpu_types = {job.needs.gpu_type};
  spec.labels = Strings(job.scheduling.labels());
  spec.tolerations = Strings(job.scheduling.tolerations());
  spec.nodes = Strings(job.scheduling.nodes());
  spec.excluded = Strings(job.scheduling.excluded_nodes());
  spec.required = LevelOf(job.scheduling.required_level(), core::Level::kCluster);
  spec.preferred = LevelOf(job.scheduling.preferred_level(), core::Level::kCluster);
  spec.submitted = job.submitted_us;
  spec.estimate = static_cast<core::Micros>(std::min<uint64_t>(job.scheduling.estimate_s(), 1u << 30)) * core::kSecond;
  spec.limit = static_cast<core::Micros>(std::min<uint64_t>(job.scheduling.limit_s(), 1u << 30)) * core::kSecond;
  SetCheckpoint(job.scheduling, &spec.checkpoint);
  if (job.scheduling.saves()) spec.notice = core::Micros{job.scheduling.grace_s()} * core::kSecond;
  spec.may_meet_maintenance = job.scheduling.may_meet_maintenance();
  // The scheduler knows a job that is held, because others may depend on it.
  spec.begin_after = job.scheduling.hold() ? core::kNever : job.scheduling.begin_us();
  spec.deadline = job.scheduling.deadline_us();
  spec.hard_deadline = job.scheduling.hard_deadline();
  for (const v1::DeadlineStep& step : job.scheduling.deadline_steps()) {
    spec.deadline_steps.push_back({step.at_us(), step.value_milli()});
  }
  spec.after.assign(job.scheduling.after().begin(), job.scheduling.after().end());
  spec.after_ok.assign(job.scheduling.after_ok().begin(), job.scheduling.after_ok().end());
  return spec;
}

core::NodeSpec SpecOf(const NodeRow& node) {
  v1::Resources total;
  (void)total.ParseFromString(node.total);
  core::NodeSpec spec;
  spec.name = node.name;
  spec.pool = node.pool;
  spec.gpu_type = total.gpu_type();
  spec.gpus = static_cast<int32_t>(std::min<uint32_t>(total.gpus(), core::kMaxGpus));
  spec.milli_cpus = total.milli_cpus();
  spec.memory_bytes = static_cast<int64_t>(std::min<uint64_t>(total.memory_bytes(), kMostBytes));
  v1::NodeFacts facts;
  (void)facts.ParseFromString(node.facts);
  spec.island = facts.island();
  spec.rack = facts.rack();
  spec.block = facts.block();
  spec.zone = facts.zone();
  spec.labels = Strings(facts.labels());
  spec.taints = Strings(facts.taints());
  spec.gpu_groups.assign(facts.gpu_groups().begin(), facts.gpu_groups().end());
  if (facts.price_milli() > 0) spec.price_milli = facts.price_milli();
  spec.nics = static_cast<int32_t>(std::min<uint32_t>(facts.nics(), 1024));
  SetGpus(facts, &spec);
  v1::NodeHealth health;
  (void)health.ParseFromString(node.health);
  spec.bad_gpus |= health.bad_gpus();
  return spec;
}

core::PodPlace PlaceOf(const PodRow& pod) {
  return {0,
          pod.node,
          pod.gpu_mask,
          static_cast<int8_t>(pod.mig_start),
          static_cast<int32_t>(pod.gpu_milli),
          core::mig::FindProfile(pod.mig_profile)};
}

core::JobStarted StartedOf(const JobRow& job, core::Micros since) {
  core::JobStarted started{job.id, {}, since};
  for (const PodRow& pod : job.pods) {
    if (!HoldsRoom(pod)) continue;
    uint32_t mask = pod.gpu_mask;
    // Placed by an old version that did not choose GPUs. Any GPUs will do.
    if (mask == 0 && job.needs.gpus > 0) mask = (1u << std::min<int64_t>(job.needs.gpus, core::kMaxGpus)) - 1;
    core::PodPlace place = PlaceOf(pod);
    place.gpu_mask = mask;
    started.pods.push_back(std::move(place));
  }
  return started;
}

Scheduler::Scheduler(const Clock* clock, core::Policy policy) : clock_(clock), policy_(policy), state_(policy) {}

core::Micros Scheduler::Now() const { return clock_->Monotonic() + offset_; }

void Scheduler::Reset() {
  state_ = core::State(policy_);
  events_.clear();
  steps_.Clear();
  must_write_ = false;
  rows_ = 0;
  last_step_ = 0;
  if (!std::exchange(clock_set_, true)) offset_ = clock_->Wall() - clock_->Monotonic();
}

Status Scheduler::Replay(const std::vector<std::string>& rows) {
  for (const std::string& row : rows) {
    v1::JournalSteps steps;
    if (!steps.ParseFromString(row)) return Error(Code::kCorrupt, "scheduler's journal: a row does not parse");
    VRUN_TRY(control::Replay(steps, &state_));
    if (steps.steps_size() > 0) last_step_ = steps.steps(steps.steps_size() - 1).now_us();
  }
  rows_ = rows.size();
  // The wall clock may have been set back since then.
  offset_ += std::max<int64_t>(last_step_ - Now(), 0);
  return {};
}

void Scheduler::History(core::Micros at, std::vector<core::Event> events) {
  last_step_ = std::max(last_step_, at);
  Record(last_step_, events, core::Step(state_, events, last_step_));
}

std::vector<core::Action> Scheduler::Decide() {
  last_step_ = std::max(last_step_, Now());
  std::vector<core::Event> events = std::exchange(events_, {});
  must_write_ = must_write_ || !events.empty();
  std::vector<core::Action> actions = core::Step(state_, events, last_step_);
  must_write_ = must_write_ || !actions.empty();
  Record(last_step_, events, actions);
  return actions;
}

void Scheduler::Record(core::Micros now, std::span<const core::Event> events, std::span<const core::Action> actions) {
  *steps_.add_steps() = EncodeStep(now, events, actions);
}

std::string Scheduler::TakeJournal() {
  constexpr int kManySteps = 1000;
  if (!must_write_ && steps_.steps_size() < kManySteps) return "";
  must_write_ = false;
  ++rows_;
  std::string row = steps_.SerializeAsString();
  steps_.Clear();
  return row;
}

std::optional<int64_t> Scheduler::NextWake() const {
  const core::Micros wake = core::NextWake(state_);
  if (wake == core::kNever) return std::nullopt;
  return std::max<int64_t>(wake - Now(), 0);
}

}  // namespace vrun::control
