// SPDX-License-Identifier: Apache-2.0
// Where a job's command is looked up, and the error when it is missing. Used by the sandbox when it starts a command,
// and by vbatch before it submits one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vrun {

// The paths that execvp would try, in order: the name itself if it has a slash, else in PATH of the environment.
std::vector<std::string> CommandCandidates(const std::string& name, const std::vector<std::string>& environment);

// "NAME: why: what to do" for a command that is in none of these places.
std::string CommandNotFound(const std::string& name);

// The same for a command that exists but whose interpreter does not.
std::string InterpreterNotFound(const std::string& name, const std::string& interpreter);

// At or below a directory of which every job has its own (/tmp, /dev, /run, /proc, /sys); home's content there is not
// mirrored. `path` is absolute, as the job sees it.
bool IsOwnPlace(std::string_view path);

// Where a job finds a script that came with its request (Command.script) instead of from the root.
inline constexpr const char kScriptPath[] = "/run/vrun/script";

}  // namespace vrun
