// SPDX-License-Identifier: Apache-2.0
// The option lines of a batch script: `#VRUN -c 4` and `#SBATCH --time=2:00:00`.
//
// They count from the first line up to the first one that is neither empty nor a comment. Words are split at blanks;
// '…' and "…" keep blanks, a backslash outside of '…' keeps the next character, # begins a comment. `#SBATCH` lines
// mean what they mean to Slurm, `#VRUN` lines what they mean to vbatch; where both say something, the later line wins,
// and the command line wins over both.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/request/run_options.h"

namespace vrun::cli {

struct Script {
  // The words of the "#!" line: interpreter and at most one argument, as the kernel splits it. Empty: there is none.
  std::vector<std::string> interpreter;
  std::vector<ParsedOption> options;
  std::vector<std::string> notes;  // as ParsedWords::notes, with their lines
};

// `name` is for messages. kInvalid: "NAME:LINE: ..."; also of a script with DOS line ends.
Result<Script> ParseScript(std::string_view text, std::string_view name);

}  // namespace vrun::cli
