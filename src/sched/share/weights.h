// SPDX-License-Identifier: Apache-2.0
// The weights of the scheduler core from a file, so that a change can be tried on a trace before it is made.
//
// One "name = value" a line, '#' begins a comment. Names are the fields of sched::core::Policy; values are whole
// numbers, "true" or "false", lists "[1, 2, 3]" as long as the field, and for times seconds with a fraction perhaps.
// What is not named is as in `otherwise`.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "sched/model/policy.h"

namespace vrun::sched::core {

// kInvalid: "NAME:LINE: what: what to do".
Result<Policy> ParseWeights(std::string_view text, const std::string& name, const Policy& otherwise = {});

}  // namespace vrun::sched::core
