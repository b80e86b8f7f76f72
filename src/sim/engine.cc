// SPDX-License-Identifier: Apache-2.0
#include "sim/engine.h"

#include <algorithm>
#include <limits>

namespace vrun::sim {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

Engine::Engine(const JobTrace& trace, const EngineConfig& config)
    : trace_(trace),
      config_(config),
      nodes_(config.nodes, config.gpus_per_node),
      free_gpus_(nodes_.capacity()),
      records_(trace.jobs.size()),
      attempts_(trace.jobs.size(), 0),
      running_at_(trace.jobs.size(), 0) {}

Result<RunResult> Engine::Run(const JobTrace& trace, const EngineConfig& config, Policy& policy) {
  if (config.nodes < 1 || config.gpus_per_node < 1) return Error(Code::kInvalid, "a cluster needs nodes with GPUs");
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
  for (const JobRecord& record : result.jobs) result.end_us = std::max(result.end_us, record.end_us);
  return result;
}

Status Engine::Loop(Policy& policy) {
  size_t next = 0;  // job that arrives next
  wake_us_ = kNever;
  while (done_ < trace_.jobs.size()) {
    int64_t at = wake_us_;
    if (next < trace_.jobs.size()) at = std::min(at, trace_.jobs[next].submit_us);
    if (!timers_.empty()) at = std::min(at, timers_.front().at_us);
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
    for (; next < trace_.jobs.size() && trace_.jobs[next].submit_us <= now_; ++next) {
      records_[next].state = JobState::kWaiting;
      policy.Submitted(*this, static_cast<JobIndex>(next));
    }
    wake_us_ = kNever;
    ++passes_;
    policy.Schedule(*this);
    // A policy that wakes itself without time passing would never end.
    if (wake_us_ <= now_) wake_us_ = now_ + 1;
  }
  return {};
}

void Engine::Fire(const Timer& timer, Policy& policy) {
  JobRecord& record = records_[timer.job];
  if (record.state == JobState::kSaving) {
    record.held_us += now_ - record.started_us;
    record.state = JobState::kWaiting;
    Release(timer.job);
    policy.Vacated(*this, timer.job);
    return;
  }
  record.held_us += now_ - record.started_us;
  record.lost_us += record.productive_us - record.started_us;
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
  const int64_t left = trace_.jobs[i].duration_us - record.worked_us;
  return record.state == JobState::kRunning ? left + record.productive_us - now_ : left + record.owed_us;
}

int64_t Engine::EndOf(JobIndex i) const {
  const JobRecord& record = records_[i];
  return record.productive_us + trace_.jobs[i].duration_us - record.worked_us;
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
  const int64_t worked = std::max<int64_t>(0, now_ - record.productive_us);
  record.lost_us += std::min(now_, record.productive_us) - record.started_us;
  // The latency of a start is paid in full each time; a restore goes on where it was cut off.
  const int64_t unpaid =
      std::max<int64_t>(0, record.productive_us - std::max(now_, record.started_us + config_.start_latency_us));
  record.owed_us = config_.restore_us + unpaid;
  LeaveRunning(i);
  if (how == Stop::kSave && config_.save_us > 0) {
    record.worked_us += worked;
    record.lost_us += config_.save_us;
    record.state = JobState::kSaving;
    SetTimer(i, now_ + config_.save_us);
    return;
  }
  // A kill goes back to a multiple of the checkpoint period, counted in work done.
  const bool fresh = how == Stop::kSave || config_.checkpoint_us == 0;
  const int64_t thrown_away =
      fresh ? 0 : std::min(worked, (record.worked_us + worked) % std::max<int64_t>(1, config_.checkpoint_us));
  record.worked_us += worked - thrown_away;
  record.lost_us += thrown_away;
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
