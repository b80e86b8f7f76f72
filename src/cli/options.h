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

enum class Argument { kNone, kRequired };

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

struct OptionTable {
  std::span<const OptionSpec> options;
  std::span<const UnsupportedOption> unsupported = {};
  std::span<const OptionSpec> common = {};  // of all commands of a family
  bool stop_at_operand = true;              // false: options may follow operands
};

struct ParsedOption {
  const OptionSpec* spec;
  std::string value;
};

struct ParsedWords {
  std::vector<ParsedOption> options;
  std::vector<std::string> operands;
  bool after_dashes = false;  // the operands began with "--"
};

// Words as a shell handed them over, the program's name not among them. kInvalid: one line that names the word and the
// nearest known option.
Result<ParsedWords> ParseWords(const OptionTable& table, std::span<const std::string> words);

// "  -P, --pool POOL      text" lines of all options that have a help text.
std::string FormatOptions(std::span<const OptionSpec> options);

// The candidate with the smallest edit distance, when it is near enough to be what was meant; "" otherwise.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace vrun::cli
