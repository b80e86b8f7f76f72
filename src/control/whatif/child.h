// SPDX-License-Identifier: Apache-2.0
// Runs a program in the background of the controller's machine: with the least share of processors and disks, for a
// bounded time, and never longer than the controller. The only file of the controller that forks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::control {

struct ChildSpec {
  std::vector<std::string> words;  // the first one is the program, absolute
  int64_t limit_us = 0;            // it is killed after this time
  int stop_fd = -1;                // it is killed when this becomes readable
};

// Blocks until it has ended; returns what it wrote to stdout. `line` gets each line of stderr. kAborted: stopped;
// kTimeout; any other error has the last line of stderr. Call it on a thread that lives at least as long: the child
// dies with it.
Result<std::string> RunChild(const ChildSpec& spec, const std::function<void(std::string_view)>& line);

}  // namespace vrun::control
