// SPDX-License-Identifier: Apache-2.0
#include "jobs/ending.h"

#include <csignal>

#include "base/escape.h"

namespace vrun {

int ExitStatus(const v1::ExitRecord& record) {
  const bool signaled = record.signal() >= 1 && record.signal() <= 64;
  switch (record.kind()) {
    case v1::ExitRecord::EXITED:
      return record.exit_code() >= 0 && record.exit_code() <= 255 ? record.exit_code() : kExitUnknown;
    case v1::ExitRecord::SIGNALED:
      // A record without a signal number is a bug of the node; it must not become 128 and look like an exit code.
      return signaled ? kExitSignal + record.signal() : kExitUnknown;
    case v1::ExitRecord::NOT_FOUND: return kExitNotFound;
    case v1::ExitRecord::NOT_EXECUTABLE: return kExitNotExecutable;
    case v1::ExitRecord::START_FAILED: return kExitNotStarted;
    case v1::ExitRecord::TIME_LIMIT: return kExitTimeLimit;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return kExitSignal + SIGKILL;
    case v1::ExitRecord::GANG_ENDED:        // only if the pod that failed has no record
    case v1::ExitRecord::PREEMPTED_BY_JOB:  // only for a job that was cancelled or lost before its next attempt
    case v1::ExitRecord::CANCELLED_BY_USER: return signaled ? kExitSignal + record.signal() : kExitNotStarted;
    case v1::ExitRecord::LEFT_GANG: return 0;  // of a pod: it does not count
    default: return kExitUnknown;
  }
}

int ExitStatus(const v1::JobInfo& job) {
  if (job.has_home_status()) {
    const int status = job.home_status();
    return status >= 0 && status <= 255 ? status : kExitUnknown;
  }
  if (job.has_exit()) {
    const int status = ExitStatus(job.exit());
    // An array has the record of the element with the highest status. Others may have been cancelled before they ran.
    const bool incomplete = job.has_array_info() && job.state() != v1::COMPLETED;
    return status == 0 && incomplete ? kExitNotStarted : status;
  }
  // Without a record, it never ran or its result is unknown.
  return job.state() == v1::CANCELLED ? kExitNotStarted : kExitUnknown;
}

std::string EndReason(const v1::ExitRecord& record) {
  std::string reason = Escape(record.reason());
  if (!reason.empty()) return reason;
  switch (record.kind()) {
    case v1::ExitRecord::EXITED:
    case v1::ExitRecord::SIGNALED: return "";
    case v1::ExitRecord::NOT_FOUND: return "command not found";
    case v1::ExitRecord::NOT_EXECUTABLE: return "command not executable";
    case v1::ExitRecord::START_FAILED: return "the command could not be started";
    case v1::ExitRecord::TIME_LIMIT: return "the time limit was reached";
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return "killed: out of memory";
    case v1::ExitRecord::PREEMPTED_BY_JOB: return "stopped for another job";
    case v1::ExitRecord::CANCELLED_BY_USER: return "cancelled";
    case v1::ExitRecord::GANG_ENDED: return "another part of the job failed";
    case v1::ExitRecord::LEFT_GANG: return "the job goes on without it";
    default: return "the node sent an exit record of an unknown kind";
  }
}

std::string EndReason(const v1::JobInfo& job) {
  return !job.reason().empty() || !job.has_exit() ? Escape(job.reason()) : EndReason(job.exit());
}

v1::JobState EndState(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case v1::ExitRecord::TIME_LIMIT: return v1::TIMEOUT;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    case v1::ExitRecord::PREEMPTED_BY_JOB:
    case v1::ExitRecord::CANCELLED_BY_USER: return v1::CANCELLED;
    case v1::ExitRecord::LEFT_GANG: return v1::COMPLETED;
    default: return v1::FAILED;
  }
}

bool IsEnd(v1::JobState state) {
  switch (state) {
    case v1::COMPLETED:
    case v1::FAILED:
    case v1::CANCELLED:
    case v1::TIMEOUT:
    case v1::OUT_OF_MEMORY: return true;
    default: return false;
  }
}

}  // namespace vrun
