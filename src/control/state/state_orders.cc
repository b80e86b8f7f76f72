// SPDX-License-Identifier: Apache-2.0
// The part of State that orders nodes about.
#include <signal.h>

#include <algorithm>

#include "control/gpus/gpu_needs.h"
#include "control/needs/default_memory.h"
#include "control/state/state.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

constexpr uint32_t kDefaultGraceMillis = 30'000;
// Of an attempt whose work since its last save is given up, unless the job has asked for a time.
constexpr uint32_t kShortGraceMillis = 10'000;

uint32_t GraceMillis(const JobRow& job) {
  const uint32_t seconds = std::min<uint32_t>(job.scheduling.grace_s(), 24 * 3600);
  return seconds == 0 ? kDefaultGraceMillis : seconds * 1000;
}

v1::StopAttempt StopOf(uint64_t job, uint32_t attempt, uint32_t pod, int32_t signal, uint32_t grace_ms) {
  v1::StopAttempt stop;
  stop.set_job(job);
  stop.set_attempt(attempt);
  stop.set_pod(pod);
  stop.set_signal(signal);
  stop.set_grace_ms(grace_ms);
  return stop;
}

// Its own signal for the end of an attempt.
int32_t SignalOf(const JobRow& job) { return job.scheduling.signal() != 0 ? job.scheduling.signal() : SIGTERM; }

v1::ControllerMessage MessageOf(v1::StopAttempt stop) {
  v1::ControllerMessage message;
  *message.mutable_stop() = std::move(stop);
  return message;
}

}  // namespace

Status State::SendStart(const JobRow& job) { return SendStart(job, 0, static_cast<uint32_t>(job.pods.size())); }

Status State::SendStart(const JobRow& job, uint32_t first, uint32_t end) {
  VRUN_ASSIGN(v1::SubmitRequest request, RequestOf(job));
  v1::ControllerMessage message;
  v1::StartAttempt* start = message.mutable_start();
  v1::RunSpec* run = start->mutable_spec();
  *run = std::move(*request.mutable_spec());
  // The job gets what is accounted, even if it asked for nothing.
  run->mutable_resources()->set_milli_cpus(ToProto(job.needs).milli_cpus());
  const bool asked_for_memory = run->resources().memory_bytes() > 0;
  *run->mutable_scheduling() = job.scheduling;
  run->set_pool(job.pool);
  start->set_home_id(job.home_id);
  start->set_user(job.user);
  start->set_content_home_id(request.snapshot().content_home_id());
  if (const Array* array = FindArray(job.array)) {
    start->set_parent_array(job.array);
    start->set_array_index(job.array_index);
    start->set_array_count(static_cast<uint32_t>(ElementCount(array->row.array)));
    start->set_array_min(MinIndex(array->row.array));
    start->set_array_max(MaxIndex(array->row.array));
  }
  for (uint32_t pod = first; pod < end; ++pod) {
    if (IsOver(job.pods[pod].state)) continue;
    // The same for all, but that one that comes later knows itself too.
    if (pod == first || IsElastic(job.gang)) {
      start->clear_pods();
      for (const PodRow& other : job.pods) {
        if (!IsGang(job)) break;
        if (IsMember(job, other) || other.pod == pod) *start->add_pods() = SeenByOthers(job, other);
      }
    }
    *start->mutable_placement() = *PlacementOf(job, pod);
    const v1::Resources gpus = GpusOfPod(job.needs, job.pods[pod]);
    v1::Resources* resources = run->mutable_resources();
    resources->set_gpus(gpus.gpus());
    resources->set_gpu_milli(gpus.gpu_milli());
    resources->set_gpu_burst_milli(gpus.gpu_burst_milli());
    resources->set_gpu_sharing(gpus.gpu_sharing());
    resources->set_mig_profile(gpus.mig_profile());
    const std::string& node = job.pods[pod].node;
    // A job for which nothing was booked gets the node's default.
    if (const auto it = nodes_.find(node); !asked_for_memory && it != nodes_.end() && job.needs.memory_bytes > 0) {
      resources->set_memory_bytes(DefaultLimit(job.needs.memory_bytes, SizeOf(it->second.row)));
    }
    if (pod + 1 == end) {
      outbox_.to_nodes.emplace_back(node, std::move(message));
    } else {
      outbox_.to_nodes.emplace_back(node, message);
    }
  }
  return {};
}

v1::GangPod State::SeenByOthers(const JobRow& job, const PodRow& pod) const {
  const auto node = nodes_.find(pod.node);
  const bool known = node != nodes_.end() && !node->second.row.addresses.empty();
  return GangPodOf(job, pod, known ? HostOf(node->second.row.addresses[0]) : pod.node);
}

void State::SendGo(const JobRow& job, const PodRow& pod) {
  v1::ControllerMessage message;
  message.mutable_go()->set_job(job.id);
  message.mutable_go()->set_attempt(job.attempt);
  message.mutable_go()->set_pod(pod.pod);
  outbox_.to_nodes.emplace_back(pod.node, std::move(message));
}

void State::SendStop(const std::string& node, uint64_t job, uint32_t attempt, uint32_t pod, int32_t signal) {
  outbox_.to_nodes.emplace_back(node, MessageOf(StopOf(job, attempt, pod, signal, kDefaultGraceMillis)));
}

void State::SendPreempt(const JobRow& job) {
  if (job.ending != Ending::kNone) return;  // its pods have been told to end
  for (const PodRow& pod : job.pods) {
    if (!IsOver(pod.state)) SendPreempt(job, pod);
  }
}

void State::SendPreempt(const JobRow& job, const PodRow& pod) {
  uint32_t grace = GraceMillis(job);
  if (const auto stop = stops_.find(job.id); stop != stops_.end()) {
    if (stop->second.at > clock_->Monotonic()) return;  // TellStops tells it
    stop->second.told = true;
    if (stop->second.mode != core::StopMode::kSave && job.scheduling.grace_s() == 0) grace = kShortGraceMillis;
  }
  v1::StopAttempt stop = StopOf(job.id, job.attempt, pod.pod, SignalOf(job), grace);
  stop.set_preempted(job.stopping);
  outbox_.to_nodes.emplace_back(pod.node, MessageOf(std::move(stop)));
}

void State::SendResized(const JobRow& job, const PodRow& pod) {
  if (job.cancelled || job.ending != Ending::kNone) return;  // it was told to end
  v1::StopAttempt stop = StopOf(job.id, job.attempt, pod.pod, SignalOf(job), GraceMillis(job));
  stop.set_resized(pod.leaving);
  outbox_.to_nodes.emplace_back(pod.node, MessageOf(std::move(stop)));
}

void State::SendGangEnd(const JobRow& job, const PodRow& pod) {
  v1::StopAttempt stop = StopOf(job.id, job.attempt, pod.pod, SIGTERM, kDefaultGraceMillis);
  // Home of a job of one pod learns from the exit record alone that the job starts again.
  if (!IsGang(job) && !job.failure.empty() && RunsAgain(job)) {
    stop.set_preempted(job.failure);
  } else {
    stop.set_gang_ended(job.failure.empty() ? "the command of its first pod has ended" : job.failure);
  }
  outbox_.to_nodes.emplace_back(pod.node, MessageOf(std::move(stop)));
}

void State::PassOn(const std::string& node, const v1::ExecInPod& exec) {
  const uint32_t from = exec.ended() ? exec.pod() : exec.from_pod();
  const uint32_t to = exec.ended() ? exec.from_pod() : exec.pod();
  const JobRow* job = JobOf(node, exec.job(), exec.attempt(), from);
  if (job == nullptr) return;
  v1::ControllerMessage message;
  *message.mutable_exec() = exec;
  if (to < job->pods.size() && !CommandEnded(job->pods[to])) {
    outbox_.to_nodes.emplace_back(job->pods[to].node, std::move(message));
  } else if (!exec.ended()) {
    message.mutable_exec()->set_ended(true);
    message.mutable_exec()->set_problem("pod " + std::to_string(to) + " of the job does not run");
    outbox_.to_nodes.emplace_back(node, std::move(message));
  }
}

Status State::SendOrders(uint64_t id, uint32_t pod) {
  const JobRow& job = jobs_.at(id);
  const PodRow& row = job.pods[pod];
  if (StartHeldBack(job)) return {};
  if (job.cancelled) {
    SendStop(row.node, id, job.attempt, pod, job.cancel_signal);
  } else if (job.ending != Ending::kNone) {
    if (!CommandEnded(row)) SendGangEnd(job, row);
  } else if (!job.stopping.empty()) {
    SendPreempt(job, row);
  } else if (row.membership == Membership::kLeaving) {
    if (!CommandEnded(row)) SendResized(job, row);
  } else if (IsGang(job) && job.state == v1::RUNNING && row.state == v1::STARTING && row.ready && IsMember(job, row)) {
    SendGo(job, row);
  }
  SendMembers(job, row);
  return {};
}

}  // namespace vrun::control
