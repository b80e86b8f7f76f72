// SPDX-License-Identifier: Apache-2.0
// What `vrun` and `vbatch` can be told, on the command line and in the `#VRUN` and `#SBATCH` lines of a script.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/base/options.h"
#include "cli/base/times.h"
#include "cli/base/values.h"
#include "cli/request/scheduling.h"
#include "proto/common.pb.h"

namespace vrun::cli {

enum class ExportMode { kAll, kNone, kListed };
enum class TerminalWish { kAuto, kForce, kNever };

struct RunOptions {
  // What the job is asked to be: of its command only what an option says, the rest is CollectCommand's.
  v1::RunSpec spec;
  std::string directory;  // "": the current one
  ExportMode export_mode = ExportMode::kAll;
  std::vector<std::string> exported;  // NAME (its value is taken from ours) or NAME=value
  std::vector<std::string> expose;
  TerminalWish terminal = TerminalWish::kAuto;
  bool quiet = false;
  bool explain_io = false;
  bool no_stdin = false;
  std::string status_json;  // FILE or fd:N
  std::string snapshot;     // "": the root as it is
  // vbatch
  std::string output, error;  // patterns as in cli/request/log_path.h
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
