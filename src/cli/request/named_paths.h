// SPDX-License-Identifier: Apache-2.0
// Paths on this machine that a command names: its program, its script, its working directory, and arguments that are
// files here. Before it creates the job, home reports which of them it does not serve (home/runs/command/mirrored.h).
// The client looks them up, because a network file system may be slow.
#pragma once

#include <string>

#include "proto/local.pb.h"

namespace vrun::cli {

// Fills run->named from run->command. `script`: index of the word in the command that is a vbatch script, after its
// interpreter; 0: none. `root`: the directory of this machine that is the jobs' "/". Never fails: paths that cannot be
// looked up are left out.
void AddNamedPaths(size_t script, const std::string& root, v1::Run* run);

}  // namespace vrun::cli
