// SPDX-License-Identifier: Apache-2.0
// Runs the driver's own programs (MPS). For threads that may block.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

// Runs argv[0] (a path) with exactly this environment, gives it `input`, and returns what it wrote to standard output
// and error. Killed after `timeout_ms`: kTimeout. kUnavailable, with its output: it did not exit with 0.
Result<std::string> RunProgram(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                               const std::string& input, int timeout_ms);

// Starts it in a session of its own, so that it outlives us; its output is appended to `log`.
Result<pid_t> StartDaemon(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                          const std::string& log);

// The processes that we may see whose environment has this NAME=value at their start.
std::vector<pid_t> ProcessesWith(const std::string& assignment);

}  // namespace vrun::gpu
