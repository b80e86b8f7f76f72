// SPDX-License-Identifier: Apache-2.0
// Checks what a new job asks of its nodes: names, labels, levels, types. A wish that no node of its pool can fulfil is
// refused at once, with the word that is wrong.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "control/state/state.h"

namespace vrun::control {

// Also replaces lists like n[1-4] by the names, and spells GPU types as the nodes do ("H100"). kInvalid, kNotFound.
Status CheckWishes(State& state, JobRow* job);

// The names in a list like "n[1-4],m1", all of which are nodes that have joined. kNotFound names the first that is not.
Result<std::vector<std::string>> KnownNodes(State& state, const std::string& list);

}  // namespace vrun::control
