// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vrun::sim {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A random number that depends only on these three, evenly distributed over 64 bits (splitmix64, twice).
uint64_t Chance(uint64_t seed, uint64_t what, uint64_t which) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + (what + 1) * 0xBF58476D1CE4E5B9u + (which + 1) * 0x94D049BB133111EBu;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return x;
}

std::vector<bool> SlowNodes(const EngineConfig& config) {
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t n = 0; n < static_cast<size_t>(config.nodes); ++n) order.push_back({Chance(config.seed, 0, n), n});
  std::sort(order.begin(), order.end());
  order.resize((order.size() * static_cast<size_t>(config.slow_nodes_percent) + 50) / 100);
  std::vector<bool> out(static_cast<size_t>(config.nodes), false);
  for (const auto& [chance, n] : order) out[n] = true;
  return out;
}

}  // namespace

Engine::Engine(const JobTrace& trace, const EngineConfig& config)
    : trace_(trace),
      config_(config),
      nodes_(config.nodes, config.gpus_per_node),
      free_gpus_(nodes_.capacity()),
      records_(trace.jobs.size()),
      attempts_(trace.jobs.size(), 0),
      running_at_(trace.jobs.size(), 0) {
  if (config.HasStragglers()) is_slow_ = SlowNodes(config);
  if (!config.HasFaults()) return;
  is_down_.resize(static_cast<size_t>(config.nodes));
  times_failed_.resize(static_cast<size_t>(config.nodes));
  for (int32_t n = 0; n < config.nodes; ++n) NextFailure(n);
}

Result<RunResult> Engine::Run(const JobTrace& trace, const EngineConfig& config, Policy& policy) {
  if (config.nodes < 1 || config.gpus_per_node < 1) return Error(Code::kInvalid, "a cluster needs nodes with GPUs");
  VRUN_CHECK(!config.free_moves || !(config.HasFaults() || config.HasStragglers()));
  const GangNodes empty(config.nodes, config.gpus_per_node);
  for (const TraceJob& job : trace.jobs) {
    if (!empty.Fits(job.gpus)) {
      return Error(Code::kInvalid, "the trace has a gang of " + std::to_string(job.gpus) + " GPUs and the cluster " +
                                       std::to_string(empty.capacity()) + ": give it more nodes");
    }
  }
  Engine engine(trace, config);
  VRUN_TRY(engine.Loop(policy));
  RunResult result;
  result.jobs = std::move(engine.records_);
  result.capacity = empty.capacity();
  result.passes = engine.passes_;
  result.node_failures = engine.node_failures_;
  for (const JobRecord& record : result.jobs) result.end_us = std::max(result.end_us, record.end_us);
  return result;
}

Status Engine::Loop(Policy& policy) {
  size_t next = 0;  // next job to arrive
  wake_us_ = kNever;
  while (done_ < trace_.jobs.size()) {
    int64_t at = wake_us_;
    if (next < trace_.jobs.size()) at = std::min(at, trace_.jobs[next].submit_us);
    if (!timers_.empty()) at = std::min(at, timers_.front().at_us);
    if (!node_timers_.empty()) at = std::min(at, node_timers_.front().at_us);
    if (at == kNever) {
      return Error(Code::kInternal,
                   "the policy leaves " + std::to_string(trace_.jobs.size() - done_) + " jobs waiting for ever");
    }
    now_ = std::max(now_, at);
    while (!timers_.empty() && timers_.front().at_us <= now_) {
      std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
      const Timer timer = timers_.back();
      timers_.pop_back();
      if (timer.attempt == attempts_[timer.job]) Fire(timer, policy);
    }
    while (!node_timers_.empty() && node_timers_.front().at_us <= now_) FireNode(policy);
    for (; next < trace_.jobs.size() && trace_.jobs[next].submit_us <= now_; ++next) {
      records_[next].state = JobState::kWaiting;
      policy.Submitted(*this, static_cast<JobIndex>(next));
    }
    wake_us_ = kNever;
    ++passes_;
    policy.Schedule(*this);
    if (config_.progress && (done_ - told_) * 200 >= trace_.jobs.size() && done_ > told_) {
      config_.progress(done_);
      told_ = done_;
    }
    // A policy that wakes itself while no time passes would never end.
    if (wake_us_ <= now_) wake_us_ = now_ + 1;
  }
  return {};
}

void Engine::Fire(const Timer& timer, Policy& policy) {
  JobRecord& record = records_[timer.job];
  if (record.state == JobState::kSaving) {
    record.lost_us += now_ - record.save_began_us;
    record.held_us += now_ - record.started_us;
    record.state = JobState::kWaiting;
    Release(timer.job);
    policy.Vacated(*this, timer.job);
    return;
  }
  const int64_t held = now_ - record.started_us;
  record.held_us += held;
  record.lost_us += held - (trace_.jobs[timer.job].duration_us - record.worked_us);
  record.worked_us = trace_.jobs[timer.job].duration_us;
  record.end_us = now_;
  record.state = JobState::kDone;
  ++done_;
  LeaveRunning(timer.job);
  Release(timer.job);
  policy.Ended(*this, timer.job);
}

int64_t Engine::Held(JobIndex i) const {
  const JobRecord& record = records_[i];
  const bool holds = record.state == JobState::kRunning || record.state == JobState::kSaving;
  return record.held_us + (holds ? now_ - record.started_us : 0);
}

int64_t Engine::Remaining(JobIndex i) const {
  const JobRecord& record = records_[i];
  if (record.state == JobState::kRunning) return EndOf(i) - now_;
  return trace_.jobs[i].duration_us - record.worked_us + record.owed_us;
}

int64_t Engine::EndOf(JobIndex i) const {
  const JobRecord& record = records_[i];
  return record.productive_us + (trace_.jobs[i].duration_us - record.worked_us) * record.pace_percent / 100;
}

bool Engine::Fits(JobIndex i) const {
  return config_.free_moves ? job(i).gpus <= free_gpus_ : nodes_.Fits(job(i).gpus);
}

void Engine::Start(JobIndex i) {
  if (config_.free_moves) {
    VRUN_CHECK(job(i).gpus <= free_gpus_);
    Begin(i);
  } else {
    StartAt(i, nodes_.Find(job(i).gpus));
  }
}

void Engine::StartAt(JobIndex i, Placement placement) {
  nodes_.Take(placement);
  const auto is_slow = [&](const NodeShare& share) { return is_slow_[static_cast<size_t>(share.node)]; };
  const bool any_slow = !is_slow_.empty() && std::any_of(placement.begin(), placement.end(), is_slow);
  records_[i].pace_percent = any_slow ? config_.slow_percent : 100;
  records_[i].placement = std::move(placement);
  Begin(i);
}

void Engine::Begin(JobIndex i) {
  JobRecord& record = records_[i];
  VRUN_CHECK(record.state == JobState::kWaiting);
  if (record.first_start_us < 0) record.first_start_us = now_;
  record.state = JobState::kRunning;
  record.started_us = now_;
  record.productive_us = now_ + config_.start_latency_us + record.owed_us;
  record.owed_us = 0;
  free_gpus_ -= job(i).gpus;
  running_at_[i] = static_cast<uint32_t>(running_.size());
  running_.push_back(i);
  SetTimer(i, EndOf(i));
}

void Engine::Preempt(JobIndex i, Stop how) {
  JobRecord& record = records_[i];
  VRUN_CHECK(record.state == JobState::kRunning);
  ++record.preemptions;
  const int64_t worked = WorkedInAttempt(i);
  record.lost_us += now_ - record.started_us - worked;
  // A start pays its full latency each time; a restore continues where it was interrupted.
  const int64_t unpaid =
      std::max<int64_t>(0, record.productive_us - std::max(now_, record.started_us + config_.start_latency_us));
  record.owed_us = config_.restore_us + unpaid;
  LeaveRunning(i);
  if (how == Stop::kSave && config_.save_us > 0) {
    record.worked_us += worked;
    record.unsaved_us = worked;
    record.save_began_us = now_;
    record.state = JobState::kSaving;
    SetTimer(i, now_ + config_.save_us);
    return;
  }
  // A kill goes back to a multiple of the checkpoint period, counted in work done.
  const bool fresh = how == Stop::kSave || config_.checkpoint_us == 0;
  const int64_t thrown_away = fresh ? 0 : std::min(worked, AfterCheckpoint(record.worked_us + worked));
  record.worked_us += worked - thrown_away;
  record.lost_us += thrown_away;
  record.held_us += now_ - record.started_us;
  record.state = JobState::kWaiting;
  ++attempts_[i];
  Release(i);
}

int64_t Engine::WorkedInAttempt(JobIndex i) const {
  const JobRecord& record = records_[i];
  return std::max<int64_t>(0, now_ - record.productive_us) * 100 / record.pace_percent;
}

// The part of this work that the last checkpoint does not include.
int64_t Engine::AfterCheckpoint(int64_t worked_us) const {
  return config_.checkpoint_us == 0 ? 0 : worked_us % config_.checkpoint_us;
}

// --- faults ---

// Depends only on the node and its number of failures, not on the policy's actions.
void Engine::NextFailure(int32_t node) {
  const auto n = static_cast<size_t>(node);
  const uint64_t chance = Chance(config_.seed, 1 + n, times_failed_[n]++);
  const double uniform = (static_cast<double>(chance >> 11) + 1) * 0x1.0p-53;  // in (0, 1]
  const double after = -std::log(uniform) * static_cast<double>(config_.node_mtbf_us);
  node_timers_.push_back({now_ + 1 + static_cast<int64_t>(std::min(after, 1e17)), node});
  std::push_heap(node_timers_.begin(), node_timers_.end(), std::greater<>());
}

void Engine::FireNode(Policy& policy) {
  std::pop_heap(node_timers_.begin(), node_timers_.end(), std::greater<>());
  const int32_t node = node_timers_.back().node;
  node_timers_.pop_back();
  const NodeShare whole{node, config_.gpus_per_node};
  const bool was_down = is_down_[static_cast<size_t>(node)];
  is_down_[static_cast<size_t>(node)] = !was_down;
  if (was_down) {
    --nodes_down_;
    nodes_.Give({&whole, 1});
    free_gpus_ += whole.gpus;
    NextFailure(node);
    return policy.NodeUp(*this, node);
  }
  ++nodes_down_;
  ++node_failures_;
  FailJobsOn(node, policy);
  nodes_.Take({&whole, 1});
  free_gpus_ -= whole.gpus;
  node_timers_.push_back({now_ + std::max<int64_t>(1, config_.node_repair_us), node});
  std::push_heap(node_timers_.begin(), node_timers_.end(), std::greater<>());
  policy.NodeDown(*this, node);
}

void Engine::FailJobsOn(int32_t node, Policy& policy) {
  for (JobIndex i = 0; i < records_.size(); ++i) {
    JobRecord& record = records_[i];
    const auto is_here = [&](const NodeShare& share) { return share.node == node; };
    if (std::none_of(record.placement.begin(), record.placement.end(), is_here)) continue;
    ++record.failures;
    if (record.state == JobState::kSaving) {
      LoseSave(i);
      policy.Vacated(*this, i);
    } else {
      Preempt(i, Stop::kKill);
      --record.preemptions;
      policy.Failed(*this, i);
    }
  }
}

void Engine::LoseSave(JobIndex i) {
  JobRecord& record = records_[i];
  const int64_t thrown_away = std::min(record.unsaved_us, AfterCheckpoint(record.worked_us));
  record.worked_us -= thrown_away;
  record.lost_us += thrown_away + now_ - record.save_began_us;
  record.held_us += now_ - record.started_us;
  record.state = JobState::kWaiting;
  ++attempts_[i];
  Release(i);
}

void Engine::Release(JobIndex i) {
  JobRecord& record = records_[i];
  nodes_.Give(record.placement);
  record.placement.clear();
  free_gpus_ += job(i).gpus;
}

void Engine::LeaveRunning(JobIndex i) {
  const uint32_t hole = running_at_[i];
  running_[hole] = running_.back();
  running_at_[running_[hole]] = hole;
  running_.pop_back();
}

void Engine::SetTimer(JobIndex i, int64_t at_us) {
  timers_.push_back({at_us, i, ++attempts_[i]});
  std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
}

}  // namespace vrun::sim
