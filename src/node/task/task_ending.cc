// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_ending.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "base/escape.h"
#include "base/files.h"
#include "node/gang/gang.h"

namespace vrun::node {
namespace {

std::string MiB(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Why memory ran out, and what to do.
std::string MemoryAdvice(const v1::TaskSpec& spec) {
  const uint64_t limit = spec.order().spec().resources().memory_bytes();
  const uint64_t share = spec.isolation().default_memory_bytes();
  if (limit == 0 && share != 0) return "out of memory: the job's share is " + MiB(share) + ": ask for more with --mem";
  return limit != 0 ? "out of memory: the job's limit is " + MiB(limit) + ": ask for more with --mem"
                    : "out of memory: the node has no more: ask for memory with --mem";
}

// Killed by the kernel, or by a shell that reports its child's kill.
bool KilledForMemory(uint64_t oom_kills, int status) {
  if (oom_kills == 0) return false;
  return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL);
}

void SetOutcome(int status, v1::ExitRecord* record) {
  if (WIFSIGNALED(status)) {
    record->set_kind(v1::ExitRecord::SIGNALED);
    record->set_signal(WTERMSIG(status));
    record->set_exit_code(128 + WTERMSIG(status));
  } else {
    record->set_kind(v1::ExitRecord::EXITED);
    record->set_exit_code(WEXITSTATUS(status));
  }
}

int ExitCode(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// The wait status that decides: of a command of several processes, the worst one.
int DecidingStatus(const EndingFacts& facts) {
  const std::vector<int>& statuses = facts.ending.ranks;
  std::optional<int> worst;
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (i < facts.ranks.killed.size() && facts.ranks.killed[i]) continue;
    if (!worst || ExitCode(statuses[i]) > ExitCode(*worst)) worst = statuses[i];
  }
  return worst.value_or(facts.ending.wait_status);
}

void SetRanks(const v1::TaskSpec& spec, const EndingFacts& facts, v1::ExitRecord* record) {
  const std::vector<int>& statuses = facts.ending.ranks;
  for (size_t i = 0; i < statuses.size(); ++i) {
    v1::RankExit* rank = record->add_ranks();
    rank->set_rank(facts.ranks.first + static_cast<uint32_t>(i));
    rank->set_node(spec.node());
    rank->set_exit_code(ExitCode(statuses[i]));
    rank->set_signal(WIFSIGNALED(statuses[i]) ? WTERMSIG(statuses[i]) : 0);
    rank->set_killed(i < facts.ranks.killed.size() && facts.ranks.killed[i]);
  }
  if (!facts.ranks.first_failed || *facts.ranks.first_failed >= statuses.size()) return;
  const int status = statuses[*facts.ranks.first_failed];
  record->set_reason("rank " + std::to_string(facts.ranks.first + *facts.ranks.first_failed) + " on " + spec.node() +
                     (WIFSIGNALED(status)
                          ? ": signal " + std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) + ")"
                          : ": exit " + std::to_string(WEXITSTATUS(status))));
}

// The name of such an end in RetryRule.causes, besides "any". "": no rule is for it.
std::string CauseOf(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() == 0 ? "" : std::to_string(record.exit_code());
    case v1::ExitRecord::SIGNALED: return "signal";
    case v1::ExitRecord::TIME_LIMIT: return "timeout";
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return "oom";
    default: return "";
  }
}

// An end after which the job is started again by one of its rules is an end of this attempt only, as a preemption is.
// The controller, which counts the tries, reads the rule's number.
void ApplyRetries(const v1::StartAttempt& order, v1::ExitRecord* record) {
  const std::string cause = CauseOf(*record);
  if (cause.empty() || order.pods_size() > 1) return;
  const v1::Scheduling& scheduling = order.spec().scheduling();
  for (int i = 0; i < scheduling.retries_size(); ++i) {
    const v1::RetryRule& rule = scheduling.retries(i);
    const bool matches = std::any_of(rule.causes().begin(), rule.causes().end(),
                                     [&](const std::string& c) { return c == cause || c == "any"; });
    if (rule.times() == 0 || !matches) continue;
    std::string what = record->reason();
    if (what.empty()) {
      what = record->signal() != 0 ? "signal " + std::to_string(record->signal())
                                   : "exit status " + std::to_string(record->exit_code());
    }
    record->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    record->set_reason("retry (rule " + std::to_string(i + 1) + "): " + what);
    return;
  }
}

v1::ExitRecord Judge(const v1::TaskSpec& spec, const EndingFacts& facts) {
  v1::ExitRecord record;
  const int status = DecidingStatus(facts);
  SetOutcome(status, &record);
  SetRanks(spec, facts, &record);
  record.set_cpu_us(facts.ending.cpu_us);
  record.set_peak_memory_bytes(facts.ending.peak_memory_bytes);
  record.set_oom_kills(facts.ending.oom_kills);
  if (KilledForMemory(facts.ending.oom_kills, status)) {
    record.set_kind(v1::ExitRecord::OUT_OF_MEMORY_KILL);
    record.set_exit_code(128 + SIGKILL);
    record.set_signal(SIGKILL);
    record.set_reason(MemoryAdvice(spec));
    return record;
  }
  switch (facts.stopped) {
    case Stopped::kNot:
      if (facts.warned && record.kind() == v1::ExitRecord::SIGNALED &&
          record.signal() == spec.order().spec().scheduling().signal()) {
        record.set_reason("ended by the signal that it gets ahead of its time limit (--signal): it does not handle it");
      }
      break;
    case Stopped::kTimeLimit:
      record.set_kind(v1::ExitRecord::TIME_LIMIT);
      record.set_exit_code(124);
      record.set_reason("time limit of " + std::to_string(spec.order().spec().scheduling().limit_s()) + " s reached");
      break;
    case Stopped::kCancelled:
      record.set_kind(v1::ExitRecord::CANCELLED_BY_USER);
      if (record.signal() == 0) record.set_signal(facts.cancel_signal);
      record.set_exit_code(128 + record.signal());
      break;
    case Stopped::kPreempted:
      // Whatever its exit status: a preempted task may exit in any way, and its work is not done.
      record.set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
      record.set_reason(facts.why);
      break;
    case Stopped::kContentLost:
      // Whatever its exit status: it has not seen the root that it should have seen.
      record.set_kind(v1::ExitRecord::START_FAILED);
      record.set_exit_code(125);
      record.set_reason(facts.why);
      break;
    case Stopped::kTooMuchDisk: record.set_reason(facts.why); break;
    case Stopped::kGangEnded:
      // Whatever its exit status: it was told to end. A pod that only waits for other pods has done what it should.
      if (Gang::ProcessesHere(spec.order()) == 0) break;
      record.set_kind(v1::ExitRecord::GANG_ENDED);
      record.set_reason(facts.why);
      break;
    case Stopped::kResized:
      // Whatever its exit status: the job goes on without it.
      record.set_kind(v1::ExitRecord::LEFT_GANG);
      record.set_reason(facts.why);
      break;
    case Stopped::kOrphaned: record.set_reason("killed: no node agent came back to it"); break;
    case Stopped::kNodeStops: record.set_reason("killed: the node stopped"); break;
  }
  if (const uint64_t kills = facts.ending.oom_kills; kills > 0) {
    // The command continued without a killed worker; without this line nobody would know.
    const std::string killed = (kills == 1 ? std::string("a process") : std::to_string(kills) + " processes") +
                               " of the command " + (kills == 1 ? "was" : "were") + " killed: " + MemoryAdvice(spec);
    record.set_reason(record.reason().empty() ? killed : record.reason() + "; " + killed);
  }
  return record;
}

}  // namespace

v1::ExitRecord JudgeEnding(const v1::TaskSpec& spec, const EndingFacts& facts) {
  v1::ExitRecord record = Judge(spec, facts);
  ApplyRetries(spec.order(), &record);
  return record;
}

std::string DiskReason(const v1::TaskSpec& spec) {
  const uint64_t limit = spec.order().spec().tmp_bytes();
  const bool whole = limit % (uint64_t{1} << 30) == 0;
  return "it wrote more than its " + (whole ? std::to_string(limit >> 30) + " GiB" : MiB(limit)) +
         " of --tmp: ask for more, or write into a directory of your own in a live view";
}

v1::ExitRecord JudgeStartFailure(const sandbox::StartFailure& failure) {
  v1::ExitRecord record;
  switch (failure.kind) {
    case sandbox::StartFailure::Kind::kNotFound:
      record.set_kind(v1::ExitRecord::NOT_FOUND);
      record.set_exit_code(127);
      break;
    case sandbox::StartFailure::Kind::kNotExecutable:
      record.set_kind(v1::ExitRecord::NOT_EXECUTABLE);
      record.set_exit_code(126);
      break;
    case sandbox::StartFailure::Kind::kFailed:
      record.set_kind(v1::ExitRecord::START_FAILED);
      record.set_exit_code(125);
      break;
  }
  record.set_reason(failure.reason);
  return record;
}

Status WriteJournal(const std::string& task_directory, const v1::ExitRecord& record) {
  return WriteFileAtomic(task_directory + "/journal", record.SerializeAsString(), 0600);
}

Result<v1::ExitRecord> ReadJournal(const std::string& task_directory) {
  VRUN_ASSIGN(std::string bytes, ReadFile(task_directory + "/journal", 1 << 20));
  v1::ExitRecord record;
  if (!record.ParseFromString(bytes) || record.kind() == v1::ExitRecord::KIND_UNSPECIFIED) {
    return Error(Code::kCorrupt, Escape(task_directory) + "/journal: not an exit record");
  }
  return record;
}

}  // namespace vrun::node
