// SPDX-License-Identifier: Apache-2.0
// What `vrun` and `vbatch` can be told, on the command line and in the `#VRUN` and `#SBATCH` lines of a script.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/options.h"
#include "cli/scheduling.h"
#include "cli/times.h"
#include "cli/values.h"

namespace vrun::cli {

enum class ExportMode { kAll, kNone, kListed };
enum class TerminalWish { kAuto, kForce, kNever };

struct RunOptions {
  std::string pool;
  std::string name;
  uint32_t milli_cpus = 0;
  uint64_t memory_bytes = 0;
  Gpus gpus;
  uint64_t time_limit_s = 0;
  std::string directory;  // "": the current one
  ExportMode export_mode = ExportMode::kAll;
  std::vector<std::string> exported;  // NAME (its value is taken from ours) or NAME=value
  std::vector<std::string> expose;
  TerminalWish terminal = TerminalWish::kAuto;
  bool quiet = false;
  bool explain_io = false;
  bool no_stdin = false;
  std::string status_json;  // FILE or fd:N
  bool discard_writes = false;
  bool keep_writes = false;  // they stay on the node
  v1::JobClass klass = v1::TRAINING;
  std::string team;
  std::optional<bool> requeue;  // not said: a batch job may be started again, an attached one not
  EndSignal end_signal;
  std::string snapshot;  // "": the root as it is
  int64_t begin_us = 0;  // wall clock; 0: at any time
  Deadline deadline;
  Dependencies dependencies;
  std::optional<bool> live_view;  // not said: as configured
  v1::OnDisconnect on_disconnect = v1::ON_DISCONNECT_UNSPECIFIED;
  // vbatch
  bool batch_script = false;  // the command is the shell of a script
  std::string output, error;  // patterns as in cli/log_path.h
  bool append_output = false;
  std::string wrap;  // not "": the text that /bin/sh runs in place of a command
  bool follow = false;
  bool parsable = false;
  // both
  bool help = false;
  bool version = false;
  std::vector<std::string> command;
  size_t script = 0;               // the word of `command` that is a script behind its interpreter; 0: none
  bool after_dashes = false;       // the command was set off with "--": never a script
  std::vector<std::string> notes;  // for people, about what was accepted and has no effect
};

const OptionTable& RunTable();
const OptionTable& BatchTable();

// Applies parsed options in order: a later one wins. kInvalid names the option, and the line of a script.
Status ApplyOptions(std::span<const ParsedOption> options, RunOptions* out);

// What does not go together with a live view. kInvalid.
Status CheckView(const RunOptions& options);

// Words of the command line. kInvalid: unknown option, bad value.
Result<RunOptions> ParseRun(std::span<const std::string> words);
Result<RunOptions> ParseBatch(std::span<const std::string> words);

}  // namespace vrun::cli
