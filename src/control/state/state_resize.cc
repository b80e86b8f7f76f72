// SPDX-License-Identifier: Apache-2.0
// The part of State that changes the number of pods of an elastic gang while it runs.
//
//   shrink: told to leave (kLeaving) ─▶ their commands have ended, their room is free ─▶ their writes are home
//   grow:   ordered (kJoining) ─ready─▶ told to go, and the others know it ─runs─▶ kFull
//                     └── could not be started: kDropped, and the job goes on as it was
//
// A pod that comes gets a number that no pod of the attempt has had.
#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "control/state/state.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

bool IsAt(const PodRow& pod, const core::PodPlace& place) {
  return pod.node == place.node && pod.gpu_mask == place.gpu_mask && pod.mig_start == place.mig_start;
}

// The row of a pod that has its room there.
PodRow* FindPod(JobRow& job, const core::PodPlace& place) {
  const auto there = std::find_if(job.pods.rbegin(), job.pods.rend(),
                                  [&](const PodRow& pod) { return HoldsRoom(pod) && IsAt(pod, place); });
  return there == job.pods.rend() ? nullptr : &*there;
}

}  // namespace

Status State::Carry(const core::Resize& resize) {
  const auto it = jobs_.find(resize.job);
  if (it == jobs_.end() || !HoldsResources(it->second) || !IsElastic(it->second.gang)) {
    LogError("job {}: the scheduler resized a job that is not elastic or does not run", resize.job);
    return {};
  }
  return resize.grow ? Grow(it->second, resize) : Shrink(it->second, resize);
}

Status State::Grow(JobRow& job, const core::Resize& resize) {
  const bool ends = job.cancelled || !job.stopping.empty() || job.ending != Ending::kNone ||
                    std::any_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) {
                      return pod.membership == Membership::kFull && CommandEnded(pod);
                    });
  if (ends || job.pods.size() + resize.pods.size() > PodNumbers(job.gang)) {
    scheduler_.Feed(core::PodsGone{job.id, resize.pods});
    return {};
  }
  // One that waits for the writes of its last attempt starts with all of them.
  const bool waits = StartHeldBack(job);
  const auto first = static_cast<uint32_t>(job.pods.size());
  for (const core::PodPlace& at : resize.pods)
    VRUN_TRY(AddPod(job, at, waits ? Membership::kFull : Membership::kJoining));
  LogInfo("job {} of {} gets {} more pods", job.id, Escape(job.user), resize.pods.size());
  VRUN_TRY(Save(job));
  return waits ? Status() : SendStart(job, first, static_cast<uint32_t>(job.pods.size()));
}

Status State::Shrink(JobRow& job, const core::Resize& resize) {
  const std::string why = "the job was made smaller: " +
                          (resize.beneficiary == 0 ? "its room is needed" : RoomFor(resize.beneficiary, jobs_));
  LogInfo("job {} of {} gives up {} pods: {}", job.id, Escape(job.user), resize.pods.size(), why);
  const bool waits = StartHeldBack(job);
  for (const core::PodPlace& at : resize.pods) {
    PodRow* const pod = FindPod(job, at);
    if (pod == nullptr) {
      LogError("job {}: the scheduler takes a pod on {} that it does not have", job.id, Escape(at.node));
      continue;
    }
    if (waits) {  // its node does not know it yet
      pod->membership = Membership::kDropped;
      pod->state = v1::CANCELLED;
      VRUN_TRY(SavePod(job, *pod));
      VRUN_TRY(AccountLeft(job, *pod));
    } else {
      VRUN_TRY(AskToLeave(job, *pod, why));
    }
  }
  VRUN_TRY(Save(job));
  TellMembers(job);
  const auto view = core::InspectJob(scheduler_.state(), job.id);
  if (view) TellResized(job, view->leaving);
  // Without them, all of the others may be ready.
  return Settle(job, true, false);
}

Status State::AskToLeave(JobRow& job, PodRow& pod, const std::string& why) {
  if (pod.membership == Membership::kLeaving) return {};
  pod.membership = Membership::kLeaving;
  pod.leaving = why;
  if (!CommandEnded(pod)) SendResized(job, pod);
  return SavePod(job, pod);
}

// Once all pods of a Resize have left their room.
void State::TellResized(const JobRow& job, const std::vector<core::PodPlace>& leaving) {
  if (leaving.empty()) return;
  const bool there = std::any_of(job.pods.begin(), job.pods.end(), [&](const PodRow& pod) {
    return pod.membership == Membership::kLeaving && !CommandEnded(pod) &&
           std::any_of(leaving.begin(), leaving.end(), [&](const auto& place) { return IsAt(pod, place); });
  });
  if (!there) scheduler_.Feed(core::JobResized{job.id});
}

Status State::Departed(JobRow& job, PodRow& pod, const std::string& reason) {
  if (pod.membership == Membership::kFull) return {};
  if (pod.membership == Membership::kJoining) {
    pod.membership = Membership::kDropped;
    LogInfo("job {} of {}: pod {} on {} cannot join: {}", job.id, Escape(job.user), pod.pod, Escape(pod.node),
            Escape(reason));
    v1::ExitRecord record;
    if (record.ParseFromString(pod.exit) && record.kind() == v1::ExitRecord::START_FAILED) Suspect(pod.node, true);
    VRUN_TRY(SavePod(job, pod));
    // Of a block, all or none.
    for (PodRow& other : job.pods) {
      const bool same = job.scheduling.segment() > 1 && other.membership == Membership::kJoining;
      if (same && !CommandEnded(other)) VRUN_TRY(AskToLeave(job, other, "another pod could not be added: " + reason));
    }
    TellMembers(job);
  }
  VRUN_TRY(AccountLeft(job, pod));
  const auto view = core::InspectJob(scheduler_.state(), job.id);
  if (!view) return {};
  const bool asked = std::any_of(view->leaving.begin(), view->leaving.end(),
                                 [&](const core::PodPlace& place) { return IsAt(pod, place); });
  if (asked) {
    TellResized(job, view->leaving);
  } else {
    scheduler_.Feed(core::PodsGone{job.id, {PlaceOf(pod)}});
  }
  return {};
}

// The commands of the others have ended, so there is nothing to join.
Status State::DismissJoining(JobRow& job) {
  const bool wanted = std::any_of(job.pods.begin(), job.pods.end(),
                                  [&](const PodRow& pod) { return IsMember(job, pod) && !CommandEnded(pod); });
  if (wanted || job.cancelled || !job.stopping.empty() || job.ending != Ending::kNone) return {};
  for (PodRow& pod : job.pods) {
    if (pod.membership != Membership::kJoining || CommandEnded(pod)) continue;
    VRUN_TRY(AskToLeave(job, pod, "the job has ended"));
  }
  return {};
}

void State::LetJoin(const JobRow& job) {
  if (job.state != v1::RUNNING || job.cancelled || !job.stopping.empty() || job.ending != Ending::kNone) return;
  bool any = false;
  for (const PodRow& pod : job.pods) {
    if (!MayJoin(job, pod)) continue;
    SendGo(job, pod);
    any = true;
  }
  if (any) TellMembers(job);
}

void State::TellMembers(const JobRow& job) {
  for (const PodRow& pod : job.pods) SendMembers(job, pod);
}

void State::SendMembers(const JobRow& job, const PodRow& pod) {
  const bool listens = pod.membership != Membership::kDropped && !CommandEnded(pod);
  if (!IsElastic(job.gang) || !listens || (job.state != v1::STARTING && job.state != v1::RUNNING)) return;
  v1::ControllerMessage message;
  v1::Members* members = message.mutable_members();
  members->set_job(job.id);
  members->set_attempt(job.attempt);
  members->set_pod(pod.pod);
  for (const PodRow& other : job.pods) {
    if (IsMember(job, other)) *members->add_pods() = SeenByOthers(job, other);
  }
  outbox_.to_nodes.emplace_back(pod.node, std::move(message));
}

}  // namespace vrun::control
