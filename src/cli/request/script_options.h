// SPDX-License-Identifier: Apache-2.0
// The option lines of a batch script: `#VRUN -c 4` and `#SBATCH --time=2:00:00`.
//
// Options are read from the first line up to the first line that is neither empty nor a comment. Words are split at
// blanks; '…' and "…" keep blanks, a backslash outside '…' keeps the next character, # begins a comment. `#SBATCH`
// lines mean what they mean to Slurm, `#VRUN` lines what they mean to vbatch. The later line wins, and the command line
// wins over both.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/request/run_options.h"

namespace vrun::cli {

struct Script {
  // The words of the "#!" line: interpreter and at most one argument, split as the kernel does it. Empty: none.
  std::vector<std::string> interpreter;
  std::vector<ParsedOption> options;
  std::vector<std::string> notes;  // like ParsedWords::notes, with line numbers
};

// `name` is for messages. kInvalid: "NAME:LINE: ...", also for DOS line ends.
Result<Script> ParseScript(std::string_view text, std::string_view name);

}  // namespace vrun::cli
