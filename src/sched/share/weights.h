// SPDX-License-Identifier: Apache-2.0
// Reads the weights of the scheduler core from a file, so that a change can be tried on a trace first.
//
// One "name = value" per line; '#' begins a comment. Names are the fields of sched::core::Policy. Values are whole
// numbers, "true" or "false", lists "[1, 2, 3]" as long as the field, and for times seconds, which may have a fraction.
// Fields that are not named are as in `otherwise`.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "sched/model/policy.h"

namespace vrun::sched::core {

// kInvalid: "NAME:LINE: what: what to do".
Result<Policy> ParseWeights(std::string_view text, const std::string& name, const Policy& otherwise = {});

}  // namespace vrun::sched::core
