// SPDX-License-Identifier: Apache-2.0
// Whether a command can start at all, before it is submitted: it is looked for as the sandbox will look for it.
#pragma once

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// `root`: the directory of this machine that is the job's "/". kNotFound, kDenied (it is there and cannot be executed),
// in the words of the job that would fail. What cannot be told from here is no error.
Status CheckCommand(const v1::Command& command, const std::string& root);
// An open file lies, symlinks followed, where the job has a directory of its own: it will not find the file.
bool IsBelowOwnPlace(int fd, const std::string& root);
// `path`, absolute as the job sees it, is a file there. True as well when that cannot be told.
bool IsInRoot(const std::string& path, const std::string& root);

}  // namespace vrun::cli
