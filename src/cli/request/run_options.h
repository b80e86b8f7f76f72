// SPDX-License-Identifier: Apache-2.0
// Options of `vrun` and `vbatch`, from the command line and the `#VRUN` and `#SBATCH` lines of a script.
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
#include "cli/notify/notify_options.h"
#include "cli/request/gang_options.h"
#include "cli/request/scheduling.h"
#include "proto/common.pb.h"
#include "proto/local.pb.h"

namespace vrun::cli {

enum class ExportMode { kAll, kNone, kListed };
enum class TerminalWish { kAuto, kForce, kNever };

struct RunOptions {
  // The requested job. Of its command, only what options set; CollectCommand fills in the rest.
  v1::RunSpec spec;
  GangOptions gang;       // ApplyShape puts it into the request
  NotifyOptions notify;   // ApplyNotify does
  std::string directory;  // "": the current one
  ExportMode export_mode = ExportMode::kAll;
  std::vector<std::string> exported;  // NAME (with our value) or NAME=value
  std::vector<std::string> expose;
  std::vector<std::string> live;  // as typed
  TerminalWish terminal = TerminalWish::kAuto;
  bool quiet = false;
  bool explain_io = false;
  bool no_stdin = false;
  bool test_only = false;
  std::string status_json;  // FILE or fd:N
  std::string snapshot;     // "": the root as it is
  // vbatch
  std::string output, error;  // patterns of cli/request/log_path.h
  bool append_output = false;
  std::string wrap;  // not "": text that /bin/sh runs instead of a command
  bool follow = false;
  std::optional<bool> away;  // absent: as configured
  bool wait_until_away = true;
  bool parsable = false;
  v1::Array array;                       // as far as options say: CompleteArray gives a sweep its indexes
  std::vector<std::string> sweeps_from;  // of each sweep: ParsedOption::where
  // both
  bool help = false;
  bool version = false;
  std::vector<std::string> command;
  size_t script = 0;               // index in `command` of the script behind its interpreter; 0: none
  bool after_dashes = false;       // a "--" precedes the command, which is then never a script
  std::vector<std::string> notes;  // for people: options that were accepted without effect
};

const OptionTable& RunTable();
const OptionTable& BatchTable();

// Applies parsed options in order; later ones win. kInvalid names the option, and for a script its line.
Status ApplyOptions(std::span<const ParsedOption> options, RunOptions* out);

// kInvalid for options that do not work with a live view.
Status CheckView(const RunOptions& options);
// kInvalid for numbers of nodes and tasks that contradict each other, and for options that need a single process.
Status CheckGang(const RunOptions& options);

// kInvalid for options that contradict --away.
Status CheckAway(const RunOptions& options);

// True: the job is an array. Completes it. kInvalid: there is no such array, or an option does not work with one. Call
// when all options and the command are known.
Result<bool> CompleteArray(RunOptions* options);

// Parses the command line. kInvalid: unknown option, bad value.
Result<RunOptions> ParseRun(std::span<const std::string> words);
Result<RunOptions> ParseBatch(std::span<const std::string> words);

}  // namespace vrun::cli
