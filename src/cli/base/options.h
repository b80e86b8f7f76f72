// SPDX-License-Identifier: Apache-2.0
// Options as data: a command lists its options once; parsing, help, hints and shell completions are derived from the
// list.
//
// Why an own parser of 200 lines: one list must serve the command line, `#SBATCH` lines and the completion of three
// shells, stop at the first word that is not an option, and refuse Slurm's unsupported options by name. CLI11 was tried
// with the same options: it starts as fast, but its users must still do most of this themselves.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::cli {

enum class Argument {
  kNone,
  kRequired,
  kOptional,     // only after "="
  kShortNumber,  // a flag, but a number may follow the letter: -n is ssh's, -n 1 is Slurm's
};

// What a shell may complete for an argument or an operand.
enum class Completes {
  kNothing,
  kFiles,
  kDirectories,
  kPools,
  kJobs,
  kFormats,
  kShells,
  kMemory,
  kNodes,
  kCacheActions,
  kSnapshotActions,
  kEnvActions,
  kViews,
  kShares,
  kNetworks,
  kSecrets,
  kSecretActions,
  kSnapshots,
  kWrites,  // home keep discard
  kClasses,
  kLevels
};

struct OptionSpec {
  int id;  // from the command's own enum; several specs may share one (aliases)
  char short_name = 0;
  std::string_view long_name;  // without "--"
  Argument argument = Argument::kNone;
  std::string_view value_name = {};
  std::string_view help = {};  // "": an alias, hidden
  Completes completes = Completes::kNothing;
};

// An option that users know from elsewhere and that is not supported yet: refused by name instead of ignored.
struct UnsupportedOption {
  char short_name;
  std::string_view long_name;
  std::string_view instead;  // what to do, a clause
};

// An option of Slurm that is accepted without effect, because a job has one task on one node anyway, or because the
// option is a remark or a hint.
struct HarmlessOption {
  char short_name = 0;
  std::string_view long_name;
  Argument argument = Argument::kNone;
  std::string_view value = {};    // not "": the only harmless value
  std::string_view instead = {};  // advice for another value, a clause
  std::string_view note = {};     // not "": another value is accepted, and this note is shown
};

struct OptionTable {
  std::span<const OptionSpec> options;
  std::span<const UnsupportedOption> unsupported = {};
  std::span<const OptionSpec> common = {};  // options of all commands of a family
  bool stop_at_operand = true;              // false: options may follow operands
  std::span<const HarmlessOption> harmless = {};
};

struct ParsedOption {
  const OptionSpec* spec;
  std::string value;
  std::string where = {};  // "job.sh:3" for a line of a script; "": the command line
};

struct ParsedWords {
  std::vector<ParsedOption> options;
  std::vector<std::string> operands;
  bool after_dashes = false;       // a "--" precedes the operands
  std::vector<std::string> notes;  // for people: options that were accepted without effect
};

// Parses words as a shell passes them, without the program's name. kInvalid: one line with the word and the nearest
// known option.
Result<ParsedWords> ParseWords(const OptionTable& table, std::span<const std::string> words);

// Lines "  -P, --pool POOL      text" for all options with a help text.
std::string FormatOptions(std::span<const OptionSpec> options);

// The candidate with the smallest edit distance if it is close enough, else "".
std::string_view Nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace vrun::cli
