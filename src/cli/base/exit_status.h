// SPDX-License-Identifier: Apache-2.0
// The names of job states.
#pragma once

#include <string_view>

#include "jobs/ending.h"

namespace vrun::cli {

// "PENDING", "RUNNING", ...
std::string_view StateName(v1::JobState state);
bool IsOver(v1::JobState state);

}  // namespace vrun::cli
