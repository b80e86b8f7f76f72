// SPDX-License-Identifier: Apache-2.0
// The commands `vrun` and `vbatch`, and the code that they share.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "cli/request/run_options.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// The whole of `vrun` and `vbatch`. Returns the exit status. `words`: without the program's name.
int RunMain(std::span<const std::string> words);
int BatchMain(std::span<const std::string> words);

// The directory of this machine that the jobs see as "/".
Result<std::string> ConfiguredRoot();
// The request for these options, without streams and terminal.
Result<v1::Run> MakeRequest(const RunOptions& options, const std::string& root);
// 128 random bits in hex.
Result<std::string> NewRequestId();

// Submits nothing: prints when and where the job would start. Returns the exit status.
Result<int> TestOnly(v1::Run run, const char* program);

}  // namespace vrun::cli
