// SPDX-License-Identifier: Apache-2.0
// Options as data: a command lists its options once; parsing, help, hints and shell completions derive from the list.
//
// An own table of 200 lines: one list has to serve the command line, `#SBATCH` lines and three shells' completion, stop
// at the first word that is no option, and refuse Slurm's options that are not there yet by name. CLI11, tried for the
// same options, starts as fast but takes over most of that only to hand it back.
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
  kOptional,     // only behind "="
  kShortNumber,  // a flag, but for a number behind its letter: -n is ssh's, -n 1 is Slurm's
};

// What a shell may offer for an argument or an operand.
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
  kSnapshots,
  kWrites,  // home keep discard
  kClasses
};

struct OptionSpec {
  int id;  // of the command's own enum; several specs may share one (aliases)
  char short_name = 0;
  std::string_view long_name;  // without "--"
  Argument argument = Argument::kNone;
  std::string_view value_name = {};
  std::string_view help = {};  // "": an alias, not shown
  Completes completes = Completes::kNothing;
};

// An option that people have in their fingers and that is not there yet: refused by name instead of ignored.
struct UnsupportedOption {
  char short_name;
  std::string_view long_name;
  std::string_view instead;  // what to do, a clause
};

// An option of Slurm's that is accepted and changes nothing, because a job has one task on one node anyway, or because
// it is a remark or a hint.
struct HarmlessOption {
  char short_name = 0;
  std::string_view long_name;
  Argument argument = Argument::kNone;
  std::string_view value = {};    // not "": the only value that is harmless
  std::string_view instead = {};  // what to do with another value, a clause
  std::string_view note = {};     // not "": another value is accepted, and people are told this
};

struct OptionTable {
  std::span<const OptionSpec> options;
  std::span<const UnsupportedOption> unsupported = {};
  std::span<const OptionSpec> common = {};  // of all commands of a family
  bool stop_at_operand = true;              // false: options may follow operands
  std::span<const HarmlessOption> harmless = {};
};

struct ParsedOption {
  const OptionSpec* spec;
  std::string value;
  std::string where = {};  // "job.sh:3" of a line of a script; "": the command line
};

struct ParsedWords {
  std::vector<ParsedOption> options;
  std::vector<std::string> operands;
  bool after_dashes = false;       // the operands began with "--"
  std::vector<std::string> notes;  // for people, about what was accepted and has no effect
};

// Words as a shell handed them over, the program's name not among them. kInvalid: one line that names the word and the
// nearest known option.
Result<ParsedWords> ParseWords(const OptionTable& table, std::span<const std::string> words);

// "  -P, --pool POOL      text" lines of all options that have a help text.
std::string FormatOptions(std::span<const OptionSpec> options);

// The candidate with the smallest edit distance, when it is near enough to be what was meant; "" otherwise.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace vrun::cli
