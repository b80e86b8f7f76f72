// SPDX-License-Identifier: Apache-2.0
// The part of State that talks to the scheduler: restoring it, carrying out its decisions, explaining them.
#include <sys/random.h>

#include <algorithm>
#include <variant>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

// Number of ended jobs from which a scheduler without a journal learns.
constexpr int kTaught = 2000;
// Only this many jobs at the head of a queue are explained in detail.
constexpr uint32_t kExplained = 200;

// To the scheduler, a job that the controller keeps from starting begins at no time.
void PutBlockers(const std::vector<v1::WhyAnswer::Blocker>& own, bool held, v1::WhyAnswer* answer) {
  if (own.empty()) return;
  google::protobuf::RepeatedPtrField<v1::WhyAnswer::Blocker> all(own.begin(), own.end());
  for (v1::WhyAnswer::Blocker& blocker : *answer->mutable_blockers()) {
    if (blocker.kind() != "begin-time") *all.Add() = std::move(blocker);
  }
  answer->mutable_blockers()->Swap(&all);
  if (!held) answer->set_summary(own[0].text());
}

Result<std::string> NewToken() {
  std::string token(16, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) return ErrnoError("random token");
  return token;
}

}  // namespace

Status State::LoadScheduler(bool anew) {
  scheduler_.Reset();
  fresh_.clear();
  positions_known_ = false;
  if (!anew) {
    VRUN_ASSIGN(std::vector<std::string> rows, store_->Journal());
    Status replayed = scheduler_.Replay(rows);
    if (replayed && !Agrees())
      replayed = Error(Code::kAborted, "scheduler's journal: it does not match the jobs in the database");
    if (!replayed) LogWarning("{}: the scheduler's state is rebuilt from the jobs", replayed.error().message());
    anew = rows.empty() || !replayed;
  }
  if (anew) {
    scheduler_.Reset();
    VRUN_TRY(store_->ClearJournal());
    VRUN_TRY(TeachHistory());
    for (const auto& [name, node] : nodes_) scheduler_.Feed(core::NodeUp{SpecOfNode(node.row)});
    for (const auto& [name, w] : maintenance_) {
      scheduler_.Feed(core::MaintenanceSet{{w.name, w.nodes, w.from_us, w.until_us}});
    }
    for (const auto& [id, job] : jobs_) {
      if (job.elements != 0 || (job.state != v1::PENDING && !HoldsResources(job))) continue;
      scheduler_.Feed(core::JobSubmitted{SpecForScheduler(job)});
      if (job.state == v1::PENDING) continue;
      scheduler_.Feed(StartedOf(job, job.started_us > 0 ? job.started_us : scheduler_.Now()));
    }
  }
  FeedTeams({});
  if (!anew && !budgets_.empty()) {
    // A budget may have been used up since, or a month begun.
    for (const auto& [id, job] : jobs_) {
      if (job.state == v1::PENDING && job.elements == 0) FeedAgain(job);
    }
  }
  for (const auto& [name, node] : nodes_) {
    if (!node.connected) {
      scheduler_.Feed(core::NodeLost{name});
      continue;
    }
    FeedNode(node);
  }
  return Decide();
}

// Whether the scheduler's view of the jobs agrees with their rows.
bool State::Agrees() const {
  auto known = [this](core::JobId id) { return jobs_.contains(id); };
  for (core::JobId id : core::Waiting(scheduler_.state())) {
    if (!known(id)) return false;
  }
  for (const auto& [name, node] : nodes_) {
    const std::vector<core::JobId> running = core::RunningOn(scheduler_.state(), name);
    if (!std::all_of(running.begin(), running.end(), known)) return false;
  }
  return std::all_of(jobs_.begin(), jobs_.end(), [this](const auto& entry) {
    const JobRow& job = entry.second;
    const auto view = core::InspectJob(scheduler_.state(), job.id);
    if (job.elements != 0) return !view.has_value();
    if (job.state != v1::PENDING && !HoldsResources(job)) return !view.has_value();
    const bool waits = view && (view->phase == core::JobPhase::kWaiting || view->phase == core::JobPhase::kClaiming);
    return view.has_value() && waits == (job.state == v1::PENDING);
  });
}

// Feeds past runs at their times, while no node is known, so that nothing is placed.
Status State::TeachHistory() {
  VRUN_ASSIGN(std::vector<JobRow> ended, store_->EndedJobs(0, kTaught, true));
  std::multimap<core::Micros, std::vector<core::Event>> moments;
  for (const JobRow& job : ended) {
    if (job.started_us == 0 || job.ended_us < job.started_us) continue;
    moments.emplace(job.started_us,
                    std::vector<core::Event>{core::JobSubmitted{SpecOf(job)}, StartedOf(job, job.started_us)});
    moments.emplace(job.ended_us, std::vector<core::Event>{core::JobEnded{job.id, job.state == v1::COMPLETED}});
  }
  for (auto& [at, events] : moments) scheduler_.History(at, std::move(events));
  return {};
}

void State::FeedTeams(const std::vector<TeamConfig>& gone) {
  for (const TeamConfig& team : gone) scheduler_.Feed(core::TeamSet{{team.spec.name, "", 1000, {}}});
  for (const TeamConfig& team : settings_.scheduler.teams) scheduler_.Feed(core::TeamSet{team.spec});
}

void State::Configure(SchedulerConfig config) {
  config.weights = settings_.scheduler.weights;
  config.in_group = std::move(settings_.scheduler.in_group);
  const SchedulerConfig before = std::exchange(settings_.scheduler, std::move(config));
  FeedTeams(before.teams);
  // Prices and budgets may be others.
  month_from_ = 0;
  looked_at_ = INT64_MIN / 2;
  for (const auto& [name, node] : nodes_) {
    if (node.connected) FeedNode(node);
  }
}

Status State::Decide() {
  VRUN_TRY(Account());
  VRUN_TRY(EndStragglers());
  VRUN_TRY(EndLateStarts());
  TellStops();
  VRUN_TRY(CarryConsequences());
  VRUN_TRY(FillWindows());
  // Carrying out an action may feed the scheduler at once: a job that had not begun has nothing to stop.
  while (scheduler_.fed() || scheduler_.NextWake() == 0) {
    for (const core::Action& action : scheduler_.Decide()) {
      VRUN_TRY(std::visit([this](const auto& a) { return Carry(a); }, action));
    }
    positions_known_ = false;
    VRUN_TRY(CarryConsequences());
    // The elements that were placed make room for the next ones.
    VRUN_TRY(FillWindows());
  }
  VRUN_TRY(SaveArrays());
  VRUN_TRY(TellNodes());
  VRUN_TRY(SaveAccounting());
  for (uint64_t id : fresh_) {
    // The spec was needed only to start the job at once. It is dropped because many jobs may wait.
    if (auto it = jobs_.find(id); it != jobs_.end()) it->second.spec.clear();
  }
  fresh_.clear();
  const std::string row = scheduler_.TakeJournal();
  if (!row.empty()) VRUN_TRY(store_->AppendJournal(row));
  if (scheduler_.rows() < settings_.most_journal_rows) return {};
  // Not while a job, or a part of it, leaves for another one, because a new scheduler would not know that.
  const bool calm = std::all_of(jobs_.begin(), jobs_.end(), [](const auto& j) {
    const std::vector<PodRow>& pods = j.second.pods;
    return j.second.stopping.empty() && std::all_of(pods.begin(), pods.end(), [](const PodRow& pod) {
             return pod.membership != Membership::kLeaving || CommandEnded(pod);
           });
  });
  return calm ? LoadScheduler(true) : Status();
}

Status State::Carry(const core::Place& place) {
  auto it = jobs_.find(place.job);
  if (it == jobs_.end() || it->second.state != v1::PENDING || place.pods.size() < LeastPods(it->second) ||
      place.pods.size() > PodsAsked(it->second)) {
    LogError("job {}: the scheduler placed a job that does not wait", place.job);
    return {};
  }
  JobRow& job = it->second;
  job.state = v1::STARTING;
  job.attempt += 1;
  job.epoch = ++epoch_;
  job.reason.clear();
  for (const core::PodPlace& at : place.pods) VRUN_TRY(AddPod(job, at, Membership::kFull));
  VRUN_TRY(Save(job));
  VRUN_TRY(SaveAttempt(job, v1::STARTING, clock_->Wall(), 0));
  outbox_.pools.insert(job.pool);
  return StartHeldBack(job) ? Status() : SendStart(job);
}

Status State::AddPod(JobRow& job, const core::PodPlace& at, Membership membership) {
  PodRow& pod = job.pods.emplace_back();
  pod.pod = static_cast<uint32_t>(job.pods.size() - 1);
  pod.node = at.node;
  pod.gpu_mask = at.gpu_mask;
  pod.mig_start = at.mig_start;
  pod.gpu_milli = static_cast<uint32_t>(at.gpu_milli);
  pod.mig_profile = core::mig::ProfileName(at.mig);
  pod.membership = membership;
  BeginInterval(&pod);
  VRUN_ASSIGN(pod.token, NewToken());
  return store_->PutPod(job.id, job.attempt, pod);
}

Status State::Carry(const core::Preempt& preempt) {
  auto it = jobs_.find(preempt.job);
  if (it == jobs_.end() || !HoldsResources(it->second)) {
    LogError("job {}: the scheduler stopped a job that does not run", preempt.job);
    return {};
  }
  JobRow& job = it->second;
  const std::string reason = "preempted: " + PreemptionReason(preempt, jobs_);
  LogInfo("job {} of {} has to leave: {}", job.id, Escape(job.user), reason);
  if (StartHeldBack(job)) return BackToQueue(job, 0, v1::PREEMPTED, reason);
  job.stopping = reason;
  job.stopping_us = clock_->Wall();
  stops_[job.id] = {preempt.mode, TellAt(job, preempt.mode)};
  VRUN_TRY(Save(job));
  SendPreempt(job);
  return {};
}

std::optional<int64_t> State::NextWake() const {
  std::optional<int64_t> wake = scheduler_.NextWake();
  for (const auto& [id, at] : stragglers_) {
    const int64_t in = std::max<int64_t>(at - clock_->Wall(), 0);
    if (!wake || in < *wake) wake = in;
  }
  for (const auto& [id, limit] : start_limits_) {
    const int64_t in = std::max<int64_t>(limit.at - clock_->Monotonic(), 0);
    if (!wake || in < *wake) wake = in;
  }
  for (const auto& [id, stop] : stops_) {
    if (stop.told) continue;
    const int64_t in = std::max<int64_t>(stop.at - clock_->Monotonic(), 0);
    if (!wake || in < *wake) wake = in;
  }
  return wake;
}

Status State::Carry(const core::Admission& admission) {
  const bool broken = admissions_.contains(admission.job) && admissions_[admission.job].met && !admission.met;
  admissions_[admission.job] = admission;
  if (!broken) return {};
  const auto it = jobs_.find(admission.job);
  if (it == jobs_.end()) return {};
  // A scheduler that is rebuilt must not promise it again.
  it->second.scheduling.set_hard_deadline(false);
  LogInfo("job {} of {}: its deadline was promised and cannot be kept", admission.job, Escape(it->second.user));
  broken_promises_.insert(admission.job);
  return Save(it->second);
}

Status State::Carry(const core::Doomed& doomed) {
  if (!jobs_.contains(doomed.job)) return {};
  return End(doomed.job, v1::CANCELLED,
             "job " + std::to_string(doomed.dependency) + " did not succeed, and this was to start only then");
}

std::string State::DeadlineOf(uint64_t id) const {
  const auto found = admissions_.find(id);
  const auto job = jobs_.find(id);
  if (found == admissions_.end() || job == jobs_.end()) return "";
  const core::Admission& a = found->second;
  // Converts the core's clock to wall time.
  const auto wall = [this](core::Micros at) { return FormatRfc3339(clock_->Wall() + at - scheduler_.Now()); };
  const std::string deadline = "the deadline, " + FormatRfc3339(job->second.scheduling.deadline_us());
  if (broken_promises_.contains(id)) {
    return deadline + ", was promised, and cannot be kept" +
           (a.end == core::kNever ? "" : ": it would end by " + wall(a.end));
  }
  if (a.met && clock_->Wall() > job->second.scheduling.deadline_us()) return deadline + ", was promised, and is over";
  if (!a.known) {
    return deadline + ", cannot be promised: nobody has seen how long this runs: give it a time limit (-t)";
  }
  if (a.met) return deadline + ", will be met: it starts by " + wall(a.start) + " and should end by " + wall(a.end);
  if (a.end == core::kNever) return deadline + ", cannot be promised: nobody knows when there will be room";
  return deadline + ", cannot be promised: by what is known it would end at " + wall(a.end);
}

uint32_t State::QueuePosition(uint64_t id) {
  if (!std::exchange(positions_known_, true)) positions_ = QueuePositions(scheduler_.state(), jobs_);
  auto it = positions_.find(id);
  return it == positions_.end() ? 0 : it->second;
}

std::string State::Waiting(const JobRow& job) {
  if (job.elements != 0) return WhyArrayWaits(job);
  if (!job.scheduling.hold()) {
    if (const auto own = BlockersOf(job); !own.empty()) return own[0].text();
  }
  const uint32_t position = QueuePosition(job.id);
  if (position > kExplained) return std::to_string(position - 1) + " jobs come before it";
  return WhyItWaits(scheduler_.state(), job);
}

v1::WhyAnswer State::Explain(const JobRow& job) {
  if (job.elements != 0) return ExplainArray(job);
  v1::WhyAnswer answer;
  answer.set_job(job.id);
  answer.set_state(job.state);
  answer.set_queue_position(QueuePosition(job.id));
  answer.set_summary(job.reason);
  for (const auto& [id, position] : positions_) {
    if (jobs_.at(id).pool == job.pool) answer.set_queue_length(std::max(answer.queue_length(), position));
  }
  ExplainJob(scheduler_.trial(), job, clock_->Wall(), scheduler_.Now(), &answer);
  PutBlockers(BlockersOf(job), job.scheduling.hold(), &answer);
  answer.set_deadline(DeadlineOf(job.id));
  if (IsGang(job) && job.state == v1::STARTING) {
    const auto full = [](const PodRow& pod) { return pod.membership == Membership::kFull; };
    const auto all = std::count_if(job.pods.begin(), job.pods.end(), full);
    const auto ready =
        std::count_if(job.pods.begin(), job.pods.end(), [&](const PodRow& pod) { return full(pod) && pod.ready; });
    answer.set_summary(std::to_string(ready) + " of its " + std::to_string(all) + " pods are ready");
  }
  if (!job.failure.empty())
    answer.set_summary(job.failure + (job.ending != Ending::kNone ? "; it is being ended" : ""));
  if (!job.stopping.empty()) answer.set_summary(job.stopping + "; it is being stopped");
  return answer;
}

Status State::AddAttempts(uint64_t id, google::protobuf::RepeatedPtrField<v1::AttemptInfo>* to) {
  VRUN_ASSIGN(std::vector<AttemptRow> attempts, store_->Attempts(id));
  const auto job = jobs_.find(id);
  for (const AttemptRow& row : attempts) {
    v1::AttemptInfo* info = to->Add();
    const bool present = job != jobs_.end() && row.ended_us == 0 && row.attempt == job->second.attempt;
    info->set_attempt(row.attempt);
    if (!row.pods.empty()) info->set_node(row.pods[0].node);
    info->set_state(present ? job->second.state : row.state);
    info->set_placed_us(row.placed_us);
    info->set_ended_us(row.ended_us);
    info->set_reason(row.reason);
  }
  return {};
}

}  // namespace vrun::control
