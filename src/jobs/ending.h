// SPDX-License-Identifier: Apache-2.0
// How the end of a job is told: its exit status and its line for people. The stderr of vrun, the output file of a batch
// job, `vbatch -f`, `vctl job` and `vctl wait` all say it with these functions, so they say the same.
#pragma once

#include <string>

#include "proto/local.pb.h"

namespace vrun {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitTimeLimit = 124;
inline constexpr int kExitNotStarted = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignal = 128;  // + the signal's number
inline constexpr int kExitUnknown = 255;

// The process status of `vrun` for this record. Never 0 unless the record says that the command exited with 0.
int ExitStatus(const v1::ExitRecord& record);
// The same of a job that is over, with or without a record.
int ExitStatus(const v1::JobInfo& job);

// One line for people, without "vrun: ". "": the status says it all (an exit code, or a plain signal).
std::string EndReason(const v1::ExitRecord& record);
// Why a job waits, or how it ended.
std::string EndReason(const v1::JobInfo& job);

// The end state that belongs to a record.
v1::JobState EndState(const v1::ExitRecord& record);
// The job is over and its outcome is known.
bool IsEnd(v1::JobState state);

}  // namespace vrun
