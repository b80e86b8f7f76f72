// SPDX-License-Identifier: Apache-2.0
// The part of State that carries out what people and programs ask for: holding and requeuing jobs, draining nodes,
// maintenance, saved states, forecasts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"
#include "sched/engine/explain.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

// A program may say more often that it has saved; this is how often it is stored.
constexpr int64_t kSavedEvery = 1'000'000;

Error NotChanged(uint64_t id, const std::string& why) {
  return Error(Code::kInvalid, "job " + std::to_string(id) + ": " + why);
}

std::string Hours(double hours) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, hours < 10 ? "%.2f" : "%.0f", hours);
  return buffer;
}

// The next try waits twice as long.
void UseTry(int64_t now, v1::RetryRule* rule, v1::Scheduling* scheduling) {
  constexpr uint32_t kMostDelay = 24 * 3600;
  rule->set_times(rule->times() - std::min(rule->times(), 1u));
  scheduling->set_begin_us(std::max(scheduling->begin_us(), now + int64_t{rule->delay_s()} * 1'000'000));
  rule->set_delay_s(std::min(rule->delay_s() * 2, kMostDelay));
}

std::string NodesOf(const std::vector<core::PodPlace>& pods) {
  constexpr size_t kMostNamed = 8;
  std::vector<std::string> names;
  for (const core::PodPlace& pod : pods) names.push_back(pod.node);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += (i > 0 ? ", " : "") + Escape(names[i]);
  if (names.size() > kMostNamed) text += " and " + std::to_string(names.size() - kMostNamed) + " more nodes";
  return text;
}

}  // namespace

int64_t State::TellAt(const JobRow& job, core::StopMode mode) const {
  const int64_t now = clock_->Monotonic();
  if (mode != core::StopMode::kAfterItsSave) return now;
  const core::Checkpoint known = SpecOf(job).checkpoint;
  const core::Micros save = known.save >= 0 ? known.save : settings_.scheduler.weights.default_save;
  const int64_t next = std::max(job.saved_us, job.started_us) + known.period + save;
  return now + std::clamp<int64_t>(next - clock_->Wall(), 0, known.period + save);
}

void State::TellStops() {
  for (auto it = stops_.begin(); it != stops_.end();) {
    if (it->second.told || it->second.at > clock_->Monotonic()) {
      ++it;
      continue;
    }
    const auto job = jobs_.find(it->first);
    const bool ends = job == jobs_.end() || job->second.stopping.empty() || !HoldsResources(job->second) ||
                      job->second.cancelled || job->second.ending != Ending::kNone;
    if (ends) {
      it = stops_.erase(it);  // it has ended, or was told to end, for another reason meanwhile
      continue;
    }
    SendPreempt(job->second);
    ++it;
  }
}

Status State::SetHold(uint64_t id, bool hold) {
  JobRow& job = jobs_.at(id);
  if (job.scheduling.hold() == hold) return hold ? Status() : NotChanged(id, "it is not held");
  if (job.state != v1::PENDING) return NotChanged(id, "it has started: only a waiting job can be held");
  job.scheduling.set_hold(hold);
  const Array* array = FindArray(job.array);
  job.parked = !hold && array != nullptr && array->full();
  admissions_.erase(id);
  broken_promises_.erase(id);
  if (!hold) job.waits_since_us = AccountingNow();
  FeedAgain(job);
  outbox_.pools.insert(job.pool);
  LogInfo("job {} of {} is {}", id, Escape(job.user), hold ? "held" : "released");
  return Save(job);
}

Status State::StopToRequeue(uint64_t id) {
  JobRow& job = jobs_.at(id);
  if (job.state == v1::PENDING) return NotChanged(id, "it waits already");
  if (!HoldsResources(job) || job.state == v1::LOST) {
    return NotChanged(id, job.state == v1::LOST ? "its node is lost" : "its command has ended");
  }
  if (job.cancelled) return NotChanged(id, "it is being cancelled");
  if (job.ending != Ending::kNone) return NotChanged(id, "it is being ended: " + job.failure);
  if (!job.scheduling.requeue()) return NotChanged(id, "it cannot be started again: submit it with --requeue");
  if (!job.stopping.empty()) return {};
  const std::string reason = "preempted: it was requeued";
  LogInfo("job {} of {} is requeued", id, Escape(job.user));
  if (StartHeldBack(job)) return BackToQueue(job, 0, v1::PREEMPTED, reason);
  job.stopping = reason;
  job.stopping_us = clock_->Wall();
  VRUN_TRY(Save(job));
  SendPreempt(job);
  return {};
}

bool State::TakeRetry(const std::string& reason, JobRow* job) {
  constexpr std::string_view kPrefix = "retry (rule ";  // node/task/task_ending.cc
  if (!reason.starts_with(kPrefix)) return false;
  const int rule = std::atoi(reason.c_str() + kPrefix.size());
  if (rule < 1 || rule > job->scheduling.retries_size()) return false;
  UseTry(clock_->Wall(), job->scheduling.mutable_retries(rule - 1), &job->scheduling);
  return true;
}

void State::TakeRetryFor(const std::string& cause, JobRow* job) {
  const int rule = RuleFor(job->scheduling, cause);
  if (rule >= 0) UseTry(clock_->Wall(), job->scheduling.mutable_retries(rule), &job->scheduling);
}

void State::WaitForBegin(const JobRow& job) {
  if (job.scheduling.begin_us() > clock_->Wall()) FeedAgain(job);
}

Status State::Saved(const std::string& node, const v1::JobWord& word) {
  JobRow* const found = JobOf(node, word.job(), word.attempt(), word.pod());
  if (!word.saved() || found == nullptr) return {};
  JobRow& job = *found;
  if (!HoldsResources(job) || job.started_us == 0) return {};
  const int64_t now = clock_->Wall();
  // The node's clock may differ from ours.
  const int64_t at = std::clamp(word.at_us(), std::min(job.started_us, now), now);
  const auto stop = stops_.find(job.id);
  const bool awaited = stop != stops_.end() && !stop->second.told;
  if (at - job.saved_us < kSavedEvery && !awaited) return {};
  job.saved_us = std::max(job.saved_us, at);
  scheduler_.Feed(core::JobSaved{job.id, scheduler_.Now() - (now - at), 0});
  VRUN_TRY(Save(job));
  if (awaited) {
    stop->second.at = clock_->Monotonic();
    SendPreempt(job);
  }
  return {};
}

v1::NodeFacts State::FactsOf(const NodeRow& node) const {
  v1::NodeFacts facts;
  v1::Resources total;
  (void)facts.ParseFromString(node.facts);
  (void)total.ParseFromString(node.total);
  settings_.scheduler.Complete(node.name, total.gpu_type(), &facts);
  return facts;
}

core::NodeSpec State::SpecOfNode(const NodeRow& node) const {
  NodeRow complete = node;
  complete.facts = FactsOf(node).SerializeAsString();
  return SpecOf(complete);
}

Status State::Drain(const std::string& name, bool drain, const std::string& reason) {
  Node& node = nodes_.at(name);
  node.row.draining = drain;
  node.row.reason = drain ? reason : "";
  if (v1::NodeHealth health = HealthOf(node.row); !drain && !health.drain().empty()) {
    health.set_overruled(std::exchange(*health.mutable_drain(), ""));
    node.row.health = health.SerializeAsString();
  }
  outbox_.pools.insert(node.row.pool);
  LogInfo("node {} {}{}{}", Escape(name), drain ? "drains" : "is resumed", reason.empty() ? "" : ": ", Escape(reason));
  if (node.connected) {
    if (drain) {
      scheduler_.Feed(core::NodeDrained{name});
    } else {
      FeedNode(node);
    }
  }
  return store_->PutNode(node.row);
}

Status State::SetMaintenance(const MaintenanceRow& window) {
  VRUN_TRY(core::Validate(core::Maintenance{window.name, window.nodes, window.from_us, window.until_us}));
  maintenance_[window.name] = window;
  scheduler_.Feed(core::MaintenanceSet{{window.name, window.nodes, window.from_us, window.until_us}});
  LogInfo("maintenance {} of {} nodes from {} until {}", Escape(window.name), window.nodes.size(),
          FormatRfc3339(window.from_us), FormatRfc3339(window.until_us));
  return store_->PutMaintenance(window);
}

Status State::EndMaintenance(const std::string& name) {
  if (maintenance_.erase(name) == 0) {
    return Error(Code::kNotFound,
                 "maintenance " + Escape(name) + ": there is none of this name: `vctl maintenance list` lists them");
  }
  scheduler_.Feed(core::MaintenanceOver{name});
  LogInfo("maintenance {} is over", Escape(name));
  return store_->DropMaintenance(name);
}

// The scheduler forgets them by itself.
Status State::ForgetPastMaintenance() {
  for (auto it = maintenance_.begin(); it != maintenance_.end();) {
    if (it->second.until_us > clock_->Wall()) {
      ++it;
      continue;
    }
    VRUN_TRY(store_->DropMaintenance(it->first));
    it = maintenance_.erase(it);
  }
  return {};
}

Result<v1::WhyAnswer> State::Forecast(const JobRow& job) {
  const core::JobSpec spec = SpecOf(job);
  VRUN_ASSIGN(core::Trial trial, core::TryJob(scheduler_.trial(), spec));
  v1::WhyAnswer answer;
  answer.set_state(v1::PENDING);
  const int64_t wall = clock_->Wall();
  const std::string nodes = NodesOf(trial.pods);
  std::string text;
  core::Micros start = scheduler_.Now();
  if (trial.forecast) start = std::max(start, trial.forecast->start);
  start = std::max(start, spec.begin_after);
  if (job.scheduling.hold()) {
    text = "it would be held until it is released";
  } else if (!trial.now && !trial.forecast) {
    text = "it would wait, and nobody knows until when";
  } else {
    answer.set_expected_us(wall + start - scheduler_.Now());
    answer.set_late_us(answer.expected_us());
    answer.set_confidence_percent(100);
    if (trial.forecast) {
      answer.set_late_us(wall + std::max(trial.forecast->late, start) - scheduler_.Now());
      answer.set_confidence_percent(
          static_cast<uint32_t>(std::clamp<int64_t>(trial.forecast->confidence / 10, 1, 100)));
    }
    text = answer.expected_us() <= wall ? "it would start now"
                                        : "it would start about " + FormatRfc3339(answer.expected_us());
    if (!nodes.empty()) text += " on " + nodes;
    if (trial.forecast && trial.forecast->after != 0) {
      text += ", when job " + std::to_string(trial.forecast->after) + " has ended";
    }
  }
  const v1::Scheduling& s = job.scheduling;
  const bool depends =
      s.after_size() + s.after_ok_size() + s.after_not_ok_size() + s.after_start_size() + s.after_corresponding_size() >
      0;
  if (depends) text += ", if the jobs that it waits for have ended by then";
  // What its GPUs cost, at the price of their nodes.
  double price = 0;
  for (const core::PodPlace& pod : trial.pods) {
    if (const auto node = nodes_.find(pod.node); node != nodes_.end()) {
      price += static_cast<double>(SpecOfNode(node->second.row).price_milli) / 1000 *
               spec.roles[static_cast<size_t>(pod.role)].request.total_milli() / core::kMilli;
    }
  }
  const core::Micros runs = spec.estimate > 0 ? spec.estimate : spec.limit;
  if (price > 0 && runs > 0) {
    const double hours = static_cast<double>(runs) / static_cast<double>(core::kHour);
    text += "; if it runs for all of its time limit, it costs its team " + Hours(price * hours) +
            " GPU-hours at the price of its nodes";
  } else if (price > 0) {
    text += "; each hour would cost its team " + Hours(price) + " GPU-hours at the price of its nodes";
  }
  answer.set_summary(text);
  return answer;
}

}  // namespace vrun::control
