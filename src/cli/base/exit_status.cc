// SPDX-License-Identifier: Apache-2.0
#include "cli/base/exit_status.h"

namespace vrun::cli {

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

bool IsOver(v1::JobState state) { return IsEnd(state) || state == v1::LOST; }

}  // namespace vrun::cli
