// SPDX-License-Identifier: Apache-2.0
// Carries out a GpuInjection (inject/injection.h) in a directory that stands for a job's root, and runs a program
// there: what the sandbox does, without the rest of the sandbox. Needs root.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "proto/supervisor.pb.h"

namespace vrun::gpu {

struct Execution {
  std::string root;     // a directory; not changed if live
  bool live = false;    // nothing can be made in the root
  std::string scratch;  // an existing directory for files that are mounted over others
  std::vector<std::string> argv;
  std::vector<std::string> environment;
};

struct Outcome {
  int status = 0;  // of waitpid
  std::string output;
};

// In a mount namespace of its own; killed after 20 s.
Result<Outcome> Execute(const v1::GpuInjection& injection, const Execution& execution);

// Runs a command of the host and returns what it writes; an error if it fails.
Result<std::string> RunHere(const std::vector<std::string>& argv);

}  // namespace vrun::gpu
