// SPDX-License-Identifier: Apache-2.0
// vctl job ID pull, vctl job ID drop: the kept writes of a job (--writes=keep) on its node.
#pragma once

#include <optional>
#include <string>

#include "cli/ctl/ctl.h"

namespace vrun::cli {

// `invocation.words.operands`: ID, the word, PATHs. `pull` false: drop. Returns the exit status: 1 when a file could
// not be put in place.
Result<int> RunKept(const CtlInvocation& invocation, bool pull, bool list, const std::optional<std::string>& to);

}  // namespace vrun::cli
