// SPDX-License-Identifier: Apache-2.0
// What the process status of `vrun` is for each way in which a job can end (the table of the exit codes).
#pragma once

#include <string>

#include "proto/common.pb.h"

namespace vrun::home {

inline constexpr int kExitTimeLimit = 124;
inline constexpr int kExitNotStarted = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitUnknown = 255;

// Never 0 unless the record says that the command exited with 0.
int ExitStatus(const v1::ExitRecord& record);

// The line for people, "" when the status says it all (an exit code or a plain signal).
std::string ExitReason(const v1::ExitRecord& record);

// The end state that belongs to a record.
v1::JobState EndState(const v1::ExitRecord& record);

bool IsEnd(v1::JobState state);

}  // namespace vrun::home
