// SPDX-License-Identifier: Apache-2.0
// Checks before submission whether a command can start at all. It searches for the command as the sandbox will.
#pragma once

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// `root`: the directory of this machine that is the job's "/". kNotFound, kDenied (it exists but cannot be executed),
// with the text that the failing job would print. No error when it cannot be told from here.
Status CheckCommand(const v1::Command& command, const std::string& root);
// Whether an open file lies, after following symlinks, where the job has its own directory, so that the job will not
// find the file.
bool IsBelowOwnPlace(int fd, const std::string& root);
// Whether `path`, absolute as the job sees it, is a file in the root. Also true when that cannot be told.
bool IsInRoot(const std::string& path, const std::string& root);

}  // namespace vrun::cli
