// SPDX-License-Identifier: Apache-2.0
// The part of State that follows the attempts: what nodes report about pods, and what becomes of the job.
#include <signal.h>

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

// Run time to repeat: all of it.
constexpr core::Micros kEverything = 100 * 365 * 24 * core::kHour;

bool HasRecord(const v1::AttemptReport& report) {
  return report.has_exit() && report.exit().kind() != v1::ExitRecord::KIND_UNSPECIFIED;
}

}  // namespace

Status State::Apply(const std::string& node, const v1::AttemptReport& report) {
  v1::ControllerMessage ack;
  ack.mutable_report_ack()->set_job(report.job());
  ack.mutable_report_ack()->set_attempt(report.attempt());
  ack.mutable_report_ack()->set_pod(report.pod());
  ack.mutable_report_ack()->set_state(report.state());
  outbox_.to_nodes.emplace_back(node, std::move(ack));

  const bool over = IsOver(report.state());
  const auto it = jobs_.find(report.job());
  if (it != jobs_.end()) {
    JobRow& job = it->second;
    if (job.leaving.attempt == report.attempt() && job.leaving.epoch == report.epoch()) {
      const bool there = std::any_of(job.leaving.pods.begin(), job.leaving.pods.end(),
                                     [&](const PodRow& pod) { return pod.pod == report.pod() && pod.node == node; });
      if (there) return over ? Left(job.id, report.pod()) : Status();
    }
    const bool present = job.epoch == report.epoch();
    if (present && JobOf(node, job.id, report.attempt(), report.pod()) != nullptr) {
      return Report(job, job.pods[report.pod()], report);
    }
  }
  // The controller's records have this pod as over or on another node, so whatever still runs there must stop.
  if (over) return {};
  SendStop(node, report.job(), report.attempt(), report.pod(), 0);
  // What the last attempt of a job that is over has kept there may still be wanted.
  bool goes_on = it != jobs_.end() && it->second.state == v1::PENDING;
  if (it != jobs_.end()) {
    goes_on = goes_on || it->second.attempt > report.attempt();
  } else {
    VRUN_ASSIGN(const std::optional<JobRow> ended, store_->GetJob(report.job()));
    goes_on = ended && ended->attempt > report.attempt();
  }
  if (goes_on) outbox_.to_nodes.back().second.mutable_stop()->set_superseded(true);
  return {};
}

JobRow* State::JobOf(const std::string& node, uint64_t id, uint32_t attempt, uint32_t pod) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.attempt != attempt || pod >= it->second.pods.size()) return nullptr;
  const PodRow& row = it->second.pods[pod];
  return row.node == node && !IsOver(row.state) ? &it->second : nullptr;
}

Status State::Report(JobRow& job, PodRow& pod, const v1::AttemptReport& report) {
  const v1::JobState state = report.state();
  const bool ready = report.ready() && !pod.ready;
  if (!IsOver(state)) {
    if (state < v1::STARTING || state > v1::COMPLETING) return {};
    // For a lost pod the node's report counts once the node is back. Any other pod only moves forward.
    if (pod.state != v1::LOST && state <= pod.state && !ready) return {};
  }
  const bool held = HoldsResources(job);
  const bool had_ended = CommandEnded(pod);
  const bool all_had_run = report.exit().kind() == v1::ExitRecord::START_FAILED && AllHaveRun(job);
  bool changed = false;
  pod.state = state;
  pod.ready = pod.ready || ready;
  if (HasRecord(report)) pod.exit = report.exit().SerializeAsString();
  if (pod.membership == Membership::kJoining && HasRun(pod)) pod.membership = Membership::kFull;
  if (state == v1::RUNNING) {
    Suspect(pod.node, false);
    changed = job.started_us == 0;
    if (changed) job.started_us = clock_->Wall();
  }
  if (const int64_t started = report.exit().started_us(); started > 0 && (!IsGang(job) || job.started_us == 0)) {
    job.started_us = started;
    changed = true;
  }
  if (const int64_t saved = report.exit().saved_us(); saved > 0 && job.started_us > 0) {
    // The last word may not have come by itself: see Saved.
    const int64_t now = clock_->Wall();
    job.saved_us = std::max(job.saved_us, std::clamp(saved, std::min(job.started_us, now), now));
    changed = true;
  }
  VRUN_TRY(SavePod(job, pod));
  if (IsGang(job)) {
    if (CommandEnded(pod) && !had_ended) VRUN_TRY(Departed(job, pod, report.exit().reason()));
    changed = NoteEnd(job, pod, all_had_run) || changed;
    // The node has lost what it knew and was given the order again, after the others had gone.
    const bool again = pod.membership == Membership::kFull && pod.state == v1::STARTING;
    if (ready && again && job.state == v1::RUNNING) SendGo(job, pod);
    if (ready && !again) LetJoin(job);
    if (ready) LimitStart(job);
  }
  return Settle(job, held, changed);
}

bool State::NoteEnd(JobRow& job, const PodRow& pod, bool all_had_run) {
  if (!CommandEnded(pod) || HasLeft(pod)) return false;
  v1::ExitRecord record;
  (void)record.ParseFromString(pod.exit);
  const std::string failure = FailureOf(job, pod);
  if (record.kind() == v1::ExitRecord::START_FAILED && !all_had_run) {
    Suspect(pod.node, true);
    EndGang(job, Ending::kNotStarted, pod.pod, failure);
    return true;
  }
  if (!failure.empty()) {
    if (!job.failure.empty()) return false;
    job.failure = failure;
    job.failed_pod = pod.pod;
    const bool last = job.gang.launcher() && pod.pod == 0;
    // A pod that sees another one leave may fail. Its gang leaves all the same.
    if ((last || !job.gang.no_kill()) && job.stopping.empty()) EndGang(job, Ending::kFailed, pod.pod, failure);
    return true;
  }
  if (record.kind() != v1::ExitRecord::EXITED) return false;
  if (job.gang.launcher() && pod.pod == 0) {
    EndGang(job, Ending::kLauncherOver, 0, "");
    return true;
  }
  if (job.gang.wait_s() == 0 || job.first_end_us != 0) return false;
  job.first_end_us = clock_->Wall();
  AwaitStragglers(job);
  return true;
}

void State::EndGang(JobRow& job, Ending why, uint32_t pod, const std::string& failure) {
  if (job.ending != Ending::kNone) return;
  job.ending = why;
  if (job.failure.empty()) {
    job.failure = failure;
    job.failed_pod = pod;
  }
  stragglers_.erase(job.id);
  if (IsGang(job) && !failure.empty()) {
    LogInfo("job {} of {}: its other pods end: {}", job.id, Escape(job.user), failure);
  }
  for (const PodRow& other : job.pods) {
    if (!CommandEnded(other)) SendGangEnd(job, other);
  }
}

// A pod that was ready may be gone with its host. That is known when its node has registered again, or is lost.
bool State::NodesAreThere(const JobRow& job) const {
  return std::all_of(job.pods.begin(), job.pods.end(), [this](const PodRow& pod) {
    if (IsOver(pod.state)) return true;
    const auto node = nodes_.find(pod.node);
    return node != nodes_.end() && node->second.connected;
  });
}

Status State::Reconnected(const std::string& node) {
  for (const auto& [id, pod] : PodsOn(node)) {
    const auto it = jobs_.find(id);
    if (it != jobs_.end() && MayGo(it->second)) VRUN_TRY(Settle(it->second, HoldsResources(it->second), false));
  }
  return {};
}

Status State::Settle(JobRow& job, bool held, bool changed) {
  VRUN_TRY(DismissJoining(job));
  const bool ended = CommandsEnded(job);
  if (ended && held && RunsAgain(job)) return RunAgain(job);
  if (ended && AllOver(job)) {
    std::string reason;
    const v1::JobState end = EndOf(job, &reason);
    return End(job.id, end, reason);
  }
  v1::JobState state = job.state;
  if (!IsGang(job)) {
    state = job.pods[0].state;
  } else if (ended) {
    const auto lost = [](const PodRow& pod) { return pod.state == v1::LOST; };
    state = std::any_of(job.pods.begin(), job.pods.end(), lost) ? v1::LOST : v1::COMPLETING;
  } else if (MayGo(job) && NodesAreThere(job)) {
    state = v1::RUNNING;
    job.started_us = clock_->Wall();
    job.failed_starts = 0;
    for (const PodRow& pod : job.pods) {
      if (pod.membership == Membership::kFull) SendGo(job, pod);
    }
  }
  if (state != v1::LOST && !job.reason.empty()) {
    job.reason.clear();
    changed = true;
  }
  if (!changed && state == job.state) return {};
  const bool began = state == v1::RUNNING && job.state == v1::STARTING;
  job.state = state;
  if (held && !HoldsResources(job)) {
    std::string unused;
    VRUN_TRY(AccountEnd(job, EndOf(job, &unused)));
  }
  VRUN_TRY(Save(job));
  if (began) LetJoin(job);  // what was added before the others had started
  if (!held || HoldsResources(job)) return {};
  const bool good = Succeeded(job);
  scheduler_.Feed(core::JobEnded{job.id, good, good});
  return {};
}

// The commands have ended, so the room is free, even if their writes are still on the way.
Status State::RunAgain(JobRow& job) {
  JobRow::Leaving leaving{job.attempt, job.epoch, {}};
  for (const PodRow& pod : job.pods) {
    if (!IsOver(pod.state) && pod.state != v1::LOST) leaving.pods.push_back(pod);
    // The next attempt of a preempted job must not begin without what this one has saved.
    if (pod.state == v1::LOST && job.ending == Ending::kNone) {
      return End(job.id, v1::FAILED, NotAllHome("node " + Escape(pod.node) + " is lost", job.attempt));
    }
  }
  core::Micros lost = 0;
  v1::JobState state = v1::FAILED;
  std::string reason = job.failure;
  if (job.ending == Ending::kNone) {
    reason = job.stopping;
    for (const PodRow& pod : job.pods) {
      v1::ExitRecord record;
      if (!record.ParseFromString(pod.exit) || record.kind() != v1::ExitRecord::PREEMPTED_BY_JOB) continue;
      reason = record.reason();
      break;
    }
    const bool retried = TakeRetry(reason, &job);
    lost = LostWork(job, retried);
    if (!retried) {
      state = v1::PREEMPTED;
      ++job.preemptions;
    }
  } else if (job.ending == Ending::kNotStarted) {
    ++job.failed_starts;
    const bool ran = job.state != v1::STARTING && std::any_of(job.pods.begin(), job.pods.end(), HasRun);
    if (ran) lost = LostBy(job);
  } else if (!IsGang(job) || job.state != v1::STARTING) {
    if (!job.scheduling.requeue()) TakeRetryFor("node", &job);
    lost = LostBy(job);
  }
  for (PodRow& pod : leaving.pods) pod.held_since_us = 0;
  if (!leaving.pods.empty()) job.leaving = std::move(leaving);
  VRUN_TRY(BackToQueue(job, lost, state, reason));
  WaitForBegin(job);
  return {};
}

// Run time of a preempted attempt that must be repeated. `retried`: it was not told to leave but failed, so that its
// last state is not known to be safe.
core::Micros State::LostWork(const JobRow& job, bool retried) {
  bool saved = job.scheduling.saves() && !retried, ran = false;
  for (const PodRow& pod : job.pods) {
    v1::ExitRecord record;
    (void)record.ParseFromString(pod.exit);
    ran = ran || record.started_us() > 0;
    // Where a rank had ended by itself before, there is nothing to save.
    if (record.kind() == v1::ExitRecord::EXITED || HasLeft(pod)) continue;
    // One that a signal has ended did not get to the end of its save, or did not know the signal. If it had said that
    // it is safe, LostBy knows since when.
    saved = saved && record.started_us() > 0 && record.signal() == 0;
  }
  if (!ran) return 0;
  if (saved) {
    const int64_t took = clock_->Wall() - job.stopping_us;
    scheduler_.Feed(core::JobSaved{job.id, scheduler_.Now(), job.stopping_us > 0 ? std::max<int64_t>(took, 1) : 0});
    return 0;
  }
  return LostBy(job);
}

core::Micros State::LostBy(const JobRow& job) const {
  if (job.started_us > 0 && job.saved_us >= job.started_us) return std::max<int64_t>(clock_->Wall() - job.saved_us, 0);
  // What earlier attempts have saved is still there.
  const auto view = core::InspectJob(scheduler_.state(), job.id);
  const bool has_saved = job.scheduling.saves() || job.saved_us > 0;
  return view && has_saved ? scheduler_.Now() - view->started : kEverything;
}

Status State::BackToQueue(JobRow& job, core::Micros lost, v1::JobState attempt_state, const std::string& reason) {
  LogInfo("job {} of {} waits again: {}", job.id, Escape(job.user), Escape(reason));
  VRUN_TRY(SaveAttempt(job, attempt_state, 0, clock_->Wall(), reason));
  if (job.started_us > 0) {
    job.lost_us += std::clamp<int64_t>(lost, 0, std::max<int64_t>(clock_->Wall() - job.started_us, 0));
  }
  VRUN_TRY(AccountRequeue(job, attempt_state, lost));
  stops_.erase(job.id);
  job.state = v1::PENDING;
  job.reason = reason;
  job.pods.clear();
  job.stopping.clear();
  job.failure.clear();
  job.gpu_fault.clear();  // of the attempt; its reason has it
  job.ending = Ending::kNone;
  job.failed_pod = 0;
  job.stopping_us = job.started_us = job.first_end_us = 0;
  stragglers_.erase(job.id);
  outbox_.pools.insert(job.pool);
  scheduler_.Feed(core::JobStopped{job.id, lost});
  if (StoppedBy(job.scheduling.team()) != nullptr) FeedAgain(job);
  return Save(job);
}

Status State::Left(uint64_t id, uint32_t pod) {
  JobRow& job = jobs_.at(id);
  std::vector<PodRow>& pods = job.leaving.pods;
  const auto row = std::find_if(pods.begin(), pods.end(), [pod](const PodRow& p) { return p.pod == pod; });
  if (row == pods.end()) return {};
  row->state = v1::PREEMPTED;
  VRUN_TRY(store_->PutPod(id, job.leaving.attempt, *row));
  outbox_.pods.emplace(id, pod);
  pods.erase(row);
  if (!pods.empty()) return {};
  job.leaving = {};
  VRUN_TRY(Save(job));
  return job.state == v1::STARTING && !StartHeldBack(job) ? SendStart(job) : Status();
}

Status State::LosePods(JobRow& job, const std::string& node, const std::string& reason) {
  if (StartHeldBack(job)) return BackToQueue(job, 0, v1::FAILED, reason);
  const bool held = HoldsResources(job);
  bool changed = false;
  for (PodRow& pod : job.pods) {
    if (pod.node != node || IsOver(pod.state) || pod.state == v1::LOST) continue;
    changed = true;
    // What a single process has come to is known when its node is back, and so are the last writes of a pod. A gang
    // cannot go on without one of its pods.
    const PodRow before = pod;
    pod.state = !IsGang(job) || !pod.exit.empty() ? v1::LOST : v1::FAILED;
    VRUN_TRY(SavePod(job, pod));
    if (pod.state == v1::FAILED) VRUN_TRY(Bereave(job, pod, before, Ending::kPodLost, reason));
  }
  if (!changed) return {};
  job.reason = reason;  // of a lost job
  return Settle(job, held, true);
}

// A pod is gone for good.
Status State::Bereave(JobRow& job, PodRow& pod, const PodRow& before, Ending why, const std::string& reason) {
  if (!CommandEnded(before)) VRUN_TRY(Departed(job, pod, reason));
  if (pod.membership == Membership::kDropped || (pod.membership != Membership::kFull && !HasRun(before))) return {};
  // Without its last writes the work of the job is not complete, but the others do not need it any more.
  const bool left = pod.membership == Membership::kLeaving;
  const bool goes_on = IsGang(job) && (left || (job.gang.no_kill() && job.state == v1::RUNNING));
  if (!goes_on) {
    EndGang(job, why, pod.pod, reason);
  } else if (job.failure.empty()) {
    job.failure = left ? reason + ", with writes of a pod that had left the job" : reason;
    job.failed_pod = pod.pod;
  }
  return {};
}

Status State::PodGone(uint64_t id, uint32_t pod, Ending why, const std::string& reason) {
  JobRow& job = jobs_.at(id);
  const bool held = HoldsResources(job);
  const PodRow before = job.pods[pod];
  job.pods[pod].state = v1::FAILED;
  VRUN_TRY(SavePod(job, job.pods[pod]));
  VRUN_TRY(Bereave(job, job.pods[pod], before, why, reason));
  return Settle(job, held, true);
}

Status State::PodUnknown(uint64_t id, uint32_t pod) {
  JobRow& job = jobs_.at(id);
  PodRow& row = job.pods[pod];
  if (row.state != v1::STARTING) {
    return PodGone(id, pod, Ending::kPodGone, "node " + Escape(row.node) + " no longer has a record of the job");
  }
  const bool wanted = row.membership == Membership::kFull || row.membership == Membership::kJoining;
  if (wanted && !job.cancelled && job.stopping.empty() && job.ending == Ending::kNone) {
    row.ready = false;
    VRUN_TRY(SavePod(job, row));
    return SendStart(job, pod, pod + 1);
  }
  const bool held = HoldsResources(job), ended = CommandEnded(row);
  row.state = wanted && !job.cancelled && job.ending == Ending::kNone ? v1::PREEMPTED : v1::CANCELLED;
  VRUN_TRY(SavePod(job, row));
  if (!ended) VRUN_TRY(Departed(job, row, "its node does not know it"));
  return Settle(job, held, true);
}

void State::AwaitStragglers(const JobRow& job) {
  if (job.first_end_us == 0 || job.gang.wait_s() == 0 || job.ending != Ending::kNone) return;
  stragglers_[job.id] = job.first_end_us + int64_t{job.gang.wait_s()} * 1'000'000;
}

Status State::EndStragglers() {
  while (true) {
    const auto due = std::find_if(stragglers_.begin(), stragglers_.end(),
                                  [this](const auto& entry) { return entry.second <= clock_->Wall(); });
    if (due == stragglers_.end()) return {};
    const uint64_t id = due->first;
    stragglers_.erase(due);
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || CommandsEnded(it->second)) continue;
    EndGang(it->second, Ending::kStragglers, 0,
            "the " + std::to_string(it->second.gang.wait_s()) + " s that --wait gives after the first end are over");
    VRUN_TRY(Save(it->second));
  }
}

void State::LimitStart(const JobRow& job) {
  if (job.state != v1::STARTING || !IsGang(job)) return;
  if (std::none_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) { return pod.ready; })) return;
  StartLimit& limit = start_limits_[job.id];
  if (limit.epoch != job.epoch) limit = {job.epoch, clock_->Monotonic() + settings_.start_micros};
}

Status State::EndLateStarts() {
  while (true) {
    const auto due = std::find_if(start_limits_.begin(), start_limits_.end(),
                                  [this](const auto& entry) { return entry.second.at <= clock_->Monotonic(); });
    if (due == start_limits_.end()) return {};
    const auto [id, limit] = *due;
    start_limits_.erase(due);
    const auto starts = [this, id = id, epoch = limit.epoch] {
      const auto it = jobs_.find(id);
      return it != jobs_.end() && it->second.epoch == epoch && it->second.state == v1::STARTING ? &it->second : nullptr;
    };
    const size_t pods = starts() == nullptr ? 0 : starts()->pods.size();
    for (uint32_t pod = 0; pod < pods && starts() != nullptr; ++pod) {
      const PodRow& late = starts()->pods[pod];
      if (late.ready || CommandEnded(late) || late.membership != Membership::kFull) continue;
      Suspect(late.node, true);
      SendStop(late.node, id, starts()->attempt, pod, SIGKILL);
      VRUN_TRY(PodGone(id, pod, Ending::kNotStarted,
                       "pod " + std::to_string(pod) + " on " + Escape(late.node) + " was not ready " +
                           std::to_string(settings_.start_micros / 1'000'000) + " s after another one"));
    }
  }
}

}  // namespace vrun::control
