// SPDX-License-Identifier: Apache-2.0
#include "jobs/gang.h"

#include <algorithm>
#include <cstring>

#include "base/escape.h"
#include "jobs/ending.h"

namespace vrun {
namespace {

// Ended by the job, not by itself.
bool WasEnded(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::GANG_ENDED:
    case v1::ExitRecord::LEFT_GANG:
    case v1::ExitRecord::PREEMPTED_BY_JOB:
    case v1::ExitRecord::CANCELLED_BY_USER:
    case v1::ExitRecord::TIME_LIMIT: return true;
    default: return false;
  }
}

bool HasFailed(const v1::ExitRecord& record) {
  return record.kind() != v1::ExitRecord::GANG_ENDED && record.kind() != v1::ExitRecord::PREEMPTED_BY_JOB &&
         ExitStatus(record) != 0;
}

bool Ran(const v1::ExitRecord& record) {
  return record.kind() == v1::ExitRecord::EXITED || record.kind() == v1::ExitRecord::SIGNALED;
}

// Null: none has failed.
const v1::ExitRecord* FirstFailure(std::span<const v1::ExitRecord> pods) {
  const v1::ExitRecord* first = nullptr;
  for (const v1::ExitRecord& pod : pods) {
    if (HasFailed(pod) && (first == nullptr || pod.ended_us() < first->ended_us())) first = &pod;
  }
  return first;
}

std::string ReasonOf(const v1::ExitRecord& first, std::span<const v1::ExitRecord> pods, uint32_t ranks,
                     const v1::Gang& gang) {
  // The controller has told the others who was first.
  for (const v1::ExitRecord& pod : pods) {
    if (pod.kind() == v1::ExitRecord::GANG_ENDED && !pod.reason().empty()) return pod.reason();
  }
  if (Ran(first)) {
    if (gang.launcher() && first.pod() == 0) return first.reason();
    for (const v1::RankExit& rank : RanksOf(first, first.pod() * ranks)) {
      std::string text = DescribeFailure(rank);
      if (!text.empty()) return text;
    }
    return first.reason();
  }
  const bool of_one =
      first.kind() == v1::ExitRecord::START_FAILED || first.kind() == v1::ExitRecord::OUT_OF_MEMORY_KILL;
  return of_one && pods.size() > 1 ? "on " + first.node() + ": " + EndReason(first) : first.reason();
}

}  // namespace

bool IsGang(const v1::Gang& gang) { return MostPods(gang) > 1 || gang.ranks_per_pod() > 1; }

uint32_t MostPods(const v1::Gang& gang) { return std::max(1u, gang.pods()); }

uint32_t PodNumbers(const v1::Gang& gang) { return MostPods(gang) + (IsElastic(gang) ? kMostJoins : 0); }

uint32_t RanksPerPod(const v1::Gang& gang) { return gang.launcher() ? 1 : std::max(1u, gang.ranks_per_pod()); }

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? name : std::to_string(signal);
}

int RankStatus(const v1::RankExit& rank) { return rank.signal() != 0 ? kExitSignal + rank.signal() : rank.exit_code(); }

std::string DescribeFailure(const v1::RankExit& rank) {
  if (rank.killed() || RankStatus(rank) == 0) return "";
  return "rank " + std::to_string(rank.rank()) + " on " + Escape(rank.node()) + ": " +
         (rank.signal() != 0 ? "signal " + SignalName(rank.signal()) : "exit " + std::to_string(rank.exit_code()));
}

google::protobuf::RepeatedPtrField<v1::RankExit> RanksOf(const v1::ExitRecord& record, uint32_t first_rank) {
  google::protobuf::RepeatedPtrField<v1::RankExit> out = record.ranks();
  if (out.empty()) {
    v1::RankExit* only = out.Add();
    only->set_rank(first_rank);
    only->set_exit_code(record.signal() != 0 ? 0 : ExitStatus(record));
    only->set_signal(record.signal());
    only->set_killed(WasEnded(record));
  }
  for (v1::RankExit& rank : out) {
    if (rank.node().empty()) rank.set_node(record.node());
  }
  return out;
}

v1::ExitRecord GangRecord(std::span<const v1::ExitRecord> pods, const v1::Gang& gang) {
  v1::ExitRecord out;
  if (pods.empty()) return out;
  const uint32_t ranks = RanksPerPod(gang);
  const v1::ExitRecord* first = FirstFailure(pods);
  if (first != nullptr) {
    out = *first;
    out.set_reason(ReasonOf(*first, pods, ranks, gang));
  } else {
    // All is well, or the pod that failed has left no record.
    const auto stayed = [](const v1::ExitRecord& pod) { return pod.kind() != v1::ExitRecord::LEFT_GANG; };
    const auto ended = std::find_if(pods.begin(), pods.end(), [&](const v1::ExitRecord& pod) {
      return pod.kind() != v1::ExitRecord::EXITED && stayed(pod);
    });
    const auto whole = std::find_if(pods.begin(), pods.end(), stayed);
    out = !gang.launcher() && ended != pods.end() ? *ended : whole != pods.end() ? *whole : pods[0];
  }
  out.clear_ranks();
  out.set_pod(0);
  out.set_conflicts(0);
  out.clear_conflict();
  out.set_cpu_us(0);
  out.set_oom_kills(0);
  int highest = 0;
  for (const v1::ExitRecord& pod : pods) {
    for (v1::RankExit& rank : RanksOf(pod, pod.pod() * ranks)) {
      if (!rank.killed()) highest = std::max(highest, RankStatus(rank));
      *out.add_ranks() = std::move(rank);
    }
    out.set_conflicts(out.conflicts() + pod.conflicts());
    out.mutable_conflict()->MergeFrom(pod.conflict());
    out.set_cpu_us(out.cpu_us() + pod.cpu_us());
    out.set_oom_kills(out.oom_kills() + pod.oom_kills());
    out.set_peak_memory_bytes(std::max(out.peak_memory_bytes(), pod.peak_memory_bytes()));
    if (pod.started_us() != 0 && (out.started_us() == 0 || pod.started_us() < out.started_us()))
      out.set_started_us(pod.started_us());
    out.set_ended_us(std::max(out.ended_us(), pod.ended_us()));
  }
  if (Ran(out) && highest != ExitStatus(out)) {
    out.set_kind(v1::ExitRecord::EXITED);
    out.set_exit_code(highest);
    out.clear_signal();
  }
  return out;
}

}  // namespace vrun
