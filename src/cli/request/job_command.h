// SPDX-License-Identifier: Apache-2.0
// What makes `vrun X` behave like `X`: this process's directory, environment, umask, limits, niceness and identity.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/request/run_options.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// A user from /etc/passwd. A static binary has no name service: for users of LDAP the name is $USER.
struct User {
  std::string name;
  std::string home;
};
User FindUser(uid_t uid, std::string_view passwd, const std::function<const char*(const char*)>& env);

// The job's environment: `from` without variables of this machine or session, changed by --export. PWD becomes
// `directory` if there is one.
std::vector<std::string> FilterEnvironment(const std::vector<std::string>& from, const RunOptions& options,
                                           std::string_view directory);

// $PWD when it names the current directory, possibly through symlinks, else the kernel's path.
Result<std::string> CurrentDirectory();

// A path of this machine as the jobs see it: paths below `root` lose that prefix, others stay unchanged.
std::string InRoot(std::string_view path, std::string_view root);

// `path` made absolute against `directory`, with "." and empty parts removed; ".." is kept (symlinks).
std::string Absolute(std::string_view path, std::string_view directory);

// The command from `options`, with argv as given, without its terminal. `root`: the directory of this machine that is
// the jobs' "/".
Result<v1::Command> CollectCommand(const RunOptions& options, const std::string& root);

// The directories of --live as the jobs see them, links resolved. Relative ones are below `directory`, which is theirs.
// kInvalid: one is not a directory, or jobs have another one there.
Result<std::vector<std::string>> CollectLivePaths(const std::vector<std::string>& typed, std::string_view directory,
                                                  const std::string& root);

}  // namespace vrun::cli
