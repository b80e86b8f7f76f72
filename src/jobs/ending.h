// SPDX-License-Identifier: Apache-2.0
// Describes the end of a job: its exit status and one line for people. The stderr of vrun, the output file of a batch
// job, `vbatch -f`, `vctl job` and `vctl wait` all use these functions, so they agree.
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

// The exit status of `vrun` for this record. Never 0 unless the command exited with 0, or is that of a pod that was
// told to leave its job.
int ExitStatus(const v1::ExitRecord& record);
// The same for a job that is over, with or without a record.
int ExitStatus(const v1::JobInfo& job);

// One line for people, without "vrun: ". "": the status is enough (an exit code, or a plain signal).
std::string EndReason(const v1::ExitRecord& record);
// Why a job waits, or how it ended.
std::string EndReason(const v1::JobInfo& job);

// The end state for a record.
v1::JobState EndState(const v1::ExitRecord& record);
// Whether the job is over and its outcome is known.
bool IsEnd(v1::JobState state);

// Whether another attempt may follow one that has ended: after a preemption, or by a rule of --retry.
inline bool MayRunAgain(const v1::Scheduling& scheduling) {
  return scheduling.requeue() || scheduling.retries_size() > 0;
}

// Whether its start depends on other jobs. Its root is then made when it starts, with what they have written.
inline bool ComesAfterOthers(const v1::Scheduling& s) {
  return s.after_size() + s.after_ok_size() + s.after_not_ok_size() + s.after_start_size() +
                 s.after_corresponding_size() >
             0 ||
         s.singleton();
}

}  // namespace vrun
