// SPDX-License-Identifier: Apache-2.0
#include "home/exit_status.h"

#include <csignal>

#include "base/escape.h"

namespace vrun::home {

int ExitStatus(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() & 0xff;
    case v1::ExitRecord::SIGNALED:
      // A record without a signal number is a defect of the node's; it must not become 128 and look like an exit code.
      return record.signal() > 0 && record.signal() < 127 ? 128 + record.signal() : kExitUnknown;
    case v1::ExitRecord::NOT_FOUND: return kExitNotFound;
    case v1::ExitRecord::NOT_EXECUTABLE: return kExitNotExecutable;
    case v1::ExitRecord::START_FAILED: return kExitNotStarted;
    case v1::ExitRecord::TIME_LIMIT: return kExitTimeLimit;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return 128 + SIGKILL;
    case v1::ExitRecord::PREEMPTED_BY_JOB:  // only of a job that was cancelled, or lost, on its way to the next attempt
    case v1::ExitRecord::CANCELLED_BY_USER:
      return record.signal() > 0 && record.signal() < 127 ? 128 + record.signal() : kExitNotStarted;
    default: return kExitUnknown;
  }
}

std::string ExitReason(const v1::ExitRecord& record) {
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
    case v1::ExitRecord::CANCELLED_BY_USER: return "cancelled";
    default: return "the node sent an exit record of an unknown kind";
  }
}

v1::JobState EndState(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case v1::ExitRecord::TIME_LIMIT: return v1::TIMEOUT;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    case v1::ExitRecord::PREEMPTED_BY_JOB:
    case v1::ExitRecord::CANCELLED_BY_USER: return v1::CANCELLED;
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

}  // namespace vrun::home
