// SPDX-License-Identifier: Apache-2.0
// Where a job's command is looked for, and what is said when it is not there: by the sandbox when it starts a command,
// and by vbatch before it submits one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vrun {

// Where execvp would look, in its order: the name itself when it has a slash, else PATH of the environment.
std::vector<std::string> CommandCandidates(const std::string& name, const std::vector<std::string>& environment);

// "NAME: why: what to do" of a command that is in none of these places.
std::string CommandNotFound(const std::string& name);

// The same of one that is there, whose interpreter is not.
std::string InterpreterNotFound(const std::string& name, const std::string& interpreter);

// At or below a directory that every job has of its own (/tmp, /dev, /run, /proc, /sys): what home has there is not
// mirrored. `path` is absolute, as the job sees it.
bool IsOwnPlace(std::string_view path);

// Where a job finds a script that came with its request (Command.script) and not with the root.
inline constexpr const char kScriptPath[] = "/run/vrun/script";

}  // namespace vrun
