// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_status.h"

namespace vrun::cli {

int StatusOf(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED:
      return record.exit_code() >= 0 && record.exit_code() <= 255 ? record.exit_code() : kExitUnknown;
    case v1::ExitRecord::SIGNALED:
    case v1::ExitRecord::PREEMPTED_BY_JOB:
    case v1::ExitRecord::CANCELLED_BY_USER:
      if (record.signal() >= 1 && record.signal() <= 64) return kExitSignal + record.signal();
      return record.kind() == v1::ExitRecord::SIGNALED ? kExitUnknown : kExitNotStarted;
    case v1::ExitRecord::NOT_FOUND: return kExitNotFound;
    case v1::ExitRecord::NOT_EXECUTABLE: return kExitNotExecutable;
    case v1::ExitRecord::START_FAILED: return kExitNotStarted;
    case v1::ExitRecord::TIME_LIMIT: return kExitTimeLimit;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return kExitSignal + 9;
    default: return kExitUnknown;
  }
}

std::string_view StateName(v1::JobState state) {
  switch (state) {
    case v1::PENDING: return "PENDING";
    case v1::STARTING: return "STARTING";
    case v1::RUNNING: return "RUNNING";
    case v1::COMPLETING: return "COMPLETING";
    case v1::COMPLETED: return "COMPLETED";
    case v1::FAILED: return "FAILED";
    case v1::CANCELLED: return "CANCELLED";
    case v1::TIMEOUT: return "TIMEOUT";
    case v1::OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case v1::LOST: return "LOST";
    case v1::PREEMPTED: return "PREEMPTED";
    default: return "UNKNOWN";
  }
}

bool IsOver(v1::JobState state) {
  switch (state) {
    case v1::COMPLETED:
    case v1::FAILED:
    case v1::CANCELLED:
    case v1::TIMEOUT:
    case v1::OUT_OF_MEMORY:
    case v1::LOST: return true;
    default: return false;
  }
}

}  // namespace vrun::cli
