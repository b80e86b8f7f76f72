// SPDX-License-Identifier: Apache-2.0
// Lists of node names as Slurm writes them: "n[1-4,7],gpu[01-16]".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::control {

// The names in the order of the text, each once. A range counts through its numbers with the width of its first one:
// n[01-03] is n01, n02, n03. kInvalid says what is wrong; also for more than 100,000 names.
Result<std::vector<std::string>> ExpandHosts(std::string_view text);

}  // namespace vrun::control
