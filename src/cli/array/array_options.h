// SPDX-License-Identifier: Apache-2.0
// Values of --array and --sweep. Errors are kInvalid with "why: what to write".
#pragma once

#include <string_view>

#include "base/result.h"
#include "jobs/array.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// "0-9,12,20-40:5" in any order, each index once or more often.
Result<ElementRanges> ParseIndexes(std::string_view text);

// Slurm's "INDEXES[%N]". Only "%N" limits the array of a sweep, whose indexes follow from its values.
Status ParseArray(std::string_view text, v1::Array* out);

// "NAME=VALUE,VALUE" (a comma in a value is written \,) or "NAME=FIRST:END[:STEP]", whole numbers without END, as
// Python's range.
Result<v1::Array::Sweep> ParseSweep(std::string_view text);

}  // namespace vrun::cli
