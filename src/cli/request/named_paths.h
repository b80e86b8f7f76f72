// SPDX-License-Identifier: Apache-2.0
// What a command names on this machine: its program, its script, its working directory, its arguments that are files
// here. Home says before the job is made which of them it will not see (home/runs/command/mirrored.h). Looked up by the
// client, for a file system of the network may take its time.
#pragma once

#include <string>

#include "proto/local.pb.h"

namespace vrun::cli {

// Fills run->named from run->command. `script`: the word of the command that is a vbatch script behind its interpreter;
// 0: none. `root`: the directory of this machine that is the jobs' "/". Never fails: what cannot be looked up is left
// out.
void AddNamedPaths(size_t script, const std::string& root, v1::Run* run);

}  // namespace vrun::cli
