// SPDX-License-Identifier: Apache-2.0
#include "control/state/gang.h"

#include <algorithm>
#include <bit>

#include "base/escape.h"
#include "jobs/ending.h"
#include "jobs/gang.h"

namespace vrun::control {
namespace {

using Kind = v1::ExitRecord;

v1::ExitRecord RecordOf(const PodRow& pod) {
  v1::ExitRecord record;
  if (!pod.exit.empty()) (void)record.ParseFromString(pod.exit);
  return record;
}

bool IsFailure(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case Kind::EXITED: return record.exit_code() != 0;
    case Kind::SIGNALED:
    case Kind::NOT_FOUND:
    case Kind::NOT_EXECUTABLE:
    case Kind::START_FAILED:
    case Kind::TIME_LIMIT:
    case Kind::OUT_OF_MEMORY_KILL: return true;
    default: return false;
  }
}

// Not why the pod failed, but what became of it.
bool WasEnded(const v1::ExitRecord& record) {
  return record.kind() == Kind::GANG_ENDED || record.kind() == Kind::LEFT_GANG ||
         record.kind() == Kind::PREEMPTED_BY_JOB || record.kind() == Kind::CANCELLED_BY_USER;
}

v1::JobState EndOf(const PodRow& pod, std::string* reason) {
  const v1::ExitRecord record = RecordOf(pod);
  if (!record.reason().empty()) *reason = record.reason();
  switch (record.kind()) {
    case Kind::EXITED: return record.exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case Kind::SIGNALED:
    case Kind::NOT_FOUND:
    case Kind::NOT_EXECUTABLE:
    case Kind::GANG_ENDED:
    case Kind::START_FAILED: return v1::FAILED;
    case Kind::TIME_LIMIT: return v1::TIMEOUT;
    case Kind::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    case Kind::PREEMPTED_BY_JOB:  // a preempted job that was cancelled while it left
    case Kind::CANCELLED_BY_USER: return v1::CANCELLED;
    default: break;
  }
  if (pod.state == v1::CANCELLED) {
    *reason = "cancelled before it started";
    return v1::CANCELLED;
  }
  // A report of success without a record proves nothing.
  *reason = "the node reported the end without an exit record";
  return v1::FAILED;
}

}  // namespace

Status CheckGang(const v1::RunSpec& spec) {
  if (!spec.has_gang()) return {};
  const v1::Gang& gang = spec.gang();
  const uint64_t pods = std::max(gang.pods(), 1u), ranks = std::max(gang.ranks_per_pod(), 1u);
  const auto refuse = [](const std::string& why) { return Error(Code::kInvalid, "submit: " + why); };
  if (pods > kMostPods) {
    return refuse(std::to_string(pods) + " nodes are asked for, " + std::to_string(kMostPods) +
                  " are the limit: ask for fewer with -N");
  }
  if (gang.min_pods() > pods) {
    return refuse("at least " + std::to_string(gang.min_pods()) + " nodes are asked for, but at most " +
                  std::to_string(pods) + ": correct -N");
  }
  if (IsElastic(gang) && gang.launcher()) {
    return refuse(
        "a program that starts the processes of all nodes itself (mpirun) cannot use nodes that come later: "
        "give one number with -N");
  }
  if (ranks > kMostRanksPerPod || pods * ranks > kMostRanks) {
    return refuse(std::to_string(ranks) + " tasks on each of " + std::to_string(pods) + " nodes are asked for, " +
                  std::to_string(kMostRanksPerPod) + " on a node and " + std::to_string(kMostRanks) +
                  " in all are the limit: ask for fewer with -n");
  }
  if (pods * ranks > 1 && spec.command().terminal()) {
    return refuse("a job of several tasks cannot use a terminal: leave --pty out");
  }
  return {};
}

bool CommandEnded(const PodRow& pod) { return pod.state == v1::COMPLETING || !pod.exit.empty() || IsOver(pod.state); }

bool CommandsEnded(const JobRow& job) { return std::all_of(job.pods.begin(), job.pods.end(), CommandEnded); }

bool AllOver(const JobRow& job) {
  return std::all_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) { return IsOver(pod.state); });
}

bool HasLeft(const PodRow& pod) {
  if (pod.membership == Membership::kFull) return false;
  if (pod.membership == Membership::kDropped) return true;
  const v1::ExitRecord record = RecordOf(pod);
  if (record.kind() == Kind::LEFT_GANG) return true;
  const bool none = record.kind() == Kind::KIND_UNSPECIFIED || record.kind() == Kind::START_FAILED;
  return pod.membership == Membership::kLeaving && CommandEnded(pod) && none;
}

bool MayJoin(const JobRow& job, const PodRow& pod) {
  const auto prepared = [](const PodRow& p) { return p.ready && p.state == v1::STARTING && p.exit.empty(); };
  if (pod.membership != Membership::kJoining || !prepared(pod)) return false;
  // Of a block, all or none.
  return job.scheduling.segment() < 2 || std::all_of(job.pods.begin(), job.pods.end(), [&](const PodRow& p) {
           return p.membership != Membership::kJoining || CommandEnded(p) || p.state != v1::STARTING || prepared(p);
         });
}

bool IsMember(const JobRow& job, const PodRow& pod) {
  return pod.membership == Membership::kFull || (job.state == v1::RUNNING && MayJoin(job, pod));
}

bool MayGo(const JobRow& job) {
  return IsGang(job) && job.state == v1::STARTING && job.ending == Ending::kNone && !job.cancelled &&
         job.stopping.empty() && std::all_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) {
           return pod.membership != Membership::kFull || (pod.ready && pod.state == v1::STARTING && pod.exit.empty());
         });
}

bool HasRun(const PodRow& pod) {
  if (pod.state == v1::RUNNING) return true;
  const v1::ExitRecord record = RecordOf(pod);
  switch (record.kind()) {
    case Kind::EXITED:
    case Kind::SIGNALED:
    case Kind::NOT_FOUND:
    case Kind::NOT_EXECUTABLE:
    case Kind::TIME_LIMIT:
    case Kind::OUT_OF_MEMORY_KILL: return true;
    default: return record.started_us() > 0;
  }
}

bool AllHaveRun(const JobRow& job) {
  return std::all_of(job.pods.begin(), job.pods.end(),
                     [](const PodRow& pod) { return pod.membership != Membership::kFull || HasRun(pod); });
}

bool Succeeded(const JobRow& job) {
  std::string unused;
  return !job.pods.empty() && CommandsEnded(job) && EndOf(job, &unused) == v1::COMPLETED;
}

bool WasPreempted(const JobRow& job) {
  return std::any_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) {
    return !HasLeft(pod) && (pod.state == v1::PREEMPTED || RecordOf(pod).kind() == Kind::PREEMPTED_BY_JOB);
  });
}

bool RunsAgain(const JobRow& job) {
  if (job.cancelled) return false;
  // While a gang is STARTING, nothing of it has run, and what goes wrong is not its fault.
  switch (job.ending) {
    case Ending::kNone: return WasPreempted(job);
    case Ending::kNotStarted:
      // Where some ranks have run, it is like any other restart.
      return job.failed_starts + 1 < kMostFailedStarts && (job.state == v1::STARTING || job.scheduling.requeue() ||
                                                           std::none_of(job.pods.begin(), job.pods.end(), HasRun));
    case Ending::kPodLost:
      // It ended before it was told to: home takes that for the end of the job.
      if (!IsGang(job) && !job.pods.empty() && !job.pods[0].exit.empty() && !WasPreempted(job)) return false;
      return job.scheduling.requeue() || (IsGang(job) && job.state == v1::STARTING) ||
             RuleFor(job.scheduling, "node") >= 0;
    case Ending::kFailed:
    case Ending::kLauncherOver:
    case Ending::kStragglers:
    case Ending::kPodGone: break;
  }
  return false;
}

int RuleFor(const v1::Scheduling& scheduling, const std::string& cause) {
  for (int i = 0; i < scheduling.retries_size(); ++i) {
    const v1::RetryRule& rule = scheduling.retries(i);
    const bool matches = std::any_of(rule.causes().begin(), rule.causes().end(),
                                     [&](const std::string& c) { return c == cause || c == "any"; });
    if (rule.times() > 0 && matches) return i;
  }
  return -1;
}

std::string FailureOf(const JobRow& job, const PodRow& pod) {
  if (HasLeft(pod)) return "";
  const v1::ExitRecord record = RecordOf(pod);
  const bool none = record.kind() == Kind::KIND_UNSPECIFIED;
  if (none ? !IsOver(pod.state) || pod.state == v1::CANCELLED || pod.state == v1::PREEMPTED : !IsFailure(record)) {
    return "";
  }
  uint32_t rank = pod.pod * RanksPerPod(job);
  int32_t code = record.exit_code(), signal = record.signal();
  for (const v1::RankExit& r : record.ranks()) {
    if (r.killed() || (r.exit_code() == 0 && r.signal() == 0)) continue;
    rank = r.rank();
    code = r.exit_code();
    signal = r.signal();
    break;
  }
  const bool whole_pod = record.kind() == Kind::START_FAILED || none;
  std::string text = whole_pod ? "pod " + std::to_string(pod.pod) : "rank " + std::to_string(rank);
  text += " on " + Escape(pod.node) + ": ";
  if (none) return text + "its node reported the end without an exit record";
  if (std::string why = EndReason(record); !why.empty()) return text + why;
  return text + (signal != 0 ? "signal " + SignalName(signal) : "exit " + std::to_string(code));
}

v1::JobState EndOf(const JobRow& job, std::string* reason) {
  if (!IsGang(job) && job.ending == Ending::kNone) {
    if (!job.pods.empty()) return EndOf(job.pods[0], reason);
    return v1::FAILED;
  }
  const bool cancelled = std::any_of(job.pods.begin(), job.pods.end(), [](const PodRow& pod) {
    return !HasLeft(pod) && (pod.state == v1::CANCELLED || RecordOf(pod).kind() == Kind::CANCELLED_BY_USER);
  });
  *reason = job.failure;
  const bool gone = job.ending == Ending::kPodLost || job.ending == Ending::kPodGone;
  if (job.cancelled && (cancelled || gone || job.ending == Ending::kNotStarted)) return v1::CANCELLED;
  if (job.ending == Ending::kNotStarted && job.failed_starts + 1 >= kMostFailedStarts) {
    *reason = "could not be started " + std::to_string(kMostFailedStarts) + " times: " + job.failure;
  }
  if (gone || job.ending == Ending::kStragglers) return v1::FAILED;
  if (job.ending == Ending::kLauncherOver) return EndOf(job.pods[0], reason);
  if (!job.failure.empty()) {
    std::string unused;
    return EndOf(job.pods[std::min<size_t>(job.failed_pod, job.pods.size() - 1)], &unused);
  }
  if (cancelled || WasPreempted(job)) return v1::CANCELLED;
  // What its node said of the worst one, if anything.
  v1::JobState state = v1::COMPLETED;
  for (const PodRow& pod : job.pods) {
    if (HasLeft(pod)) continue;
    std::string why;
    if (const v1::JobState end = EndOf(pod, &why); end != v1::COMPLETED && state == v1::COMPLETED) {
      state = end;
      *reason = why;
    }
  }
  return state;
}

std::string ExitOf(const JobRow& job) {
  if (job.pods.empty()) return "";
  if (job.pods.size() == 1) return job.pods[0].exit;
  v1::ExitRecord whole;
  std::pair<int, bool> worst{-1, false};
  std::vector<v1::ExitRecord> records;  // empty for a pod that has never joined
  for (const PodRow& pod : job.pods) {
    if (!CommandEnded(pod)) return "";
    records.push_back(pod.membership == Membership::kDropped ? v1::ExitRecord() : RecordOf(pod));
    const v1::ExitRecord& record = records.back();
    if (record.kind() == Kind::KIND_UNSPECIFIED || HasLeft(pod)) continue;
    // What was ended because of the others does not hide how those ended.
    const std::pair<int, bool> status{WasEnded(record) ? 0 : ExitStatus(record), WasEnded(record)};
    if (status > worst) whole = record;
    worst = std::max(worst, status);
  }
  if (whole.kind() == Kind::KIND_UNSPECIFIED) return "";
  whole.clear_ranks();
  whole.clear_conflict();
  whole.clear_cpu_us();
  whole.clear_conflicts();
  whole.clear_oom_kills();
  whole.clear_peak_memory_bytes();
  whole.clear_started_us();
  if (!job.failure.empty()) whole.set_reason(job.failure);
  for (size_t i = 0; i < records.size(); ++i) {
    const v1::ExitRecord& r = records[i];
    const int64_t began = whole.started_us() == 0 ? r.started_us() : whole.started_us();
    whole.set_started_us(r.started_us() == 0 ? began : std::min(began, r.started_us()));
    whole.set_ended_us(std::max(whole.ended_us(), r.ended_us()));
    whole.set_cpu_us(whole.cpu_us() + r.cpu_us());
    whole.set_peak_memory_bytes(whole.peak_memory_bytes() + r.peak_memory_bytes());
    whole.set_conflicts(whole.conflicts() + r.conflicts());
    whole.set_oom_kills(whole.oom_kills() + r.oom_kills());
    whole.set_saved_us(std::max(whole.saved_us(), r.saved_us()));
    for (const std::string& path : r.conflict()) {
      if (whole.conflict_size() < 16) whole.add_conflict(path);
    }
    if (job.gang.launcher() && i > 0) continue;                    // it has no rank
    if (job.pods[i].membership == Membership::kDropped) continue;  // and neither has this one
    whole.mutable_ranks()->MergeFrom(r.ranks());
    if (r.ranks_size() > 0) continue;
    for (uint32_t rank = 0; rank < RanksPerPod(job); ++rank) {
      v1::RankExit* exit = whole.add_ranks();
      exit->set_rank(job.pods[i].pod * RanksPerPod(job) + rank);
      exit->set_node(job.pods[i].node);
      exit->set_exit_code(r.signal() != 0 ? 0 : ExitStatus(r));
      exit->set_signal(r.signal());
      exit->set_killed(WasEnded(r));
    }
  }
  return whole.SerializeAsString();
}

std::string NotAllHome(const std::string& reason, uint32_t attempt) {
  return reason + ": not all writes of attempt " + std::to_string(attempt) + " reached home";
}

v1::GangPod GangPodOf(const JobRow& job, const PodRow& pod, const std::string& host) {
  v1::GangPod out;
  out.set_role("worker");
  out.set_node(pod.node);
  out.set_host(host);
  out.set_ranks(RanksPerPod(job));
  out.set_first_rank(pod.pod * RanksPerPod(job));
  out.set_gpus(static_cast<uint32_t>(std::popcount(pod.gpu_mask)));
  return out;
}

std::string HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace vrun::control
