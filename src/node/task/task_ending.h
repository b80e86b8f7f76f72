// SPDX-License-Identifier: Apache-2.0
// Interprets the end of a command: pure functions from the facts to the exit record, and the record's file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

// Why the supervisor ended a command.
enum class Stopped {
  kNot,
  kTimeLimit,
  kCancelled,
  kPreempted,
  kContentLost,
  kTooMuchDisk,
  kGangEnded,
  kResized,
  kOrphaned,
  kNodeStops
};

// The processes of a command that has several.
struct RankFacts {
  uint32_t first = 0;        // the rank of the first one
  std::vector<bool> killed;  // each: told to end, because of another one or together with the whole job
  std::optional<size_t> first_failed;
};

struct EndingFacts {
  Stopped stopped = Stopped::kNot;
  int cancel_signal = 0;
  sandbox::Ending ending;
  std::string why = {};  // reason of kPreempted, kContentLost, kTooMuchDisk, kGangEnded and kResized, for people
  bool warned = false;   // Scheduling.signal was sent before the time limit
  RankFacts ranks = {};
};

// Sets kind, exit_code (vrun's exit code: 128+n, 124, 137, ...), signal, reason, ranks and usage. The caller sets times
// and names. Of several processes, the highest exit code of those that were not killed counts, and the reason is the
// first failure.
v1::ExitRecord JudgeEnding(const v1::TaskSpec& spec, const EndingFacts& facts);
v1::ExitRecord JudgeStartFailure(const sandbox::StartFailure& failure);
// For kTooMuchDisk.
std::string DiskReason(const v1::TaskSpec& spec);

// The file `journal` in the task directory: a serialized ExitRecord, replaced atomically and synced. No file: the
// command has not ended, or its end is unknown.
Status WriteJournal(const std::string& task_directory, const v1::ExitRecord& record);
// kNotFound without a file, kCorrupt when it does not parse.
Result<v1::ExitRecord> ReadJournal(const std::string& task_directory);

}  // namespace vrun::node
