// SPDX-License-Identifier: Apache-2.0
// What makes `vrun X` feel like `X`: this process's directory, environment, umask, limits, niceness and identity.
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

// A user as /etc/passwd knows it. A static binary has no name service: users of LDAP are called what $USER says.
struct User {
  std::string name;
  std::string home;
};
User FindUser(uid_t uid, std::string_view passwd, const std::function<const char*(const char*)>& env);

// The environment that goes along: `from` without what belongs to this machine or session, with what --export says.
// `directory` becomes PWD where there is one.
std::vector<std::string> FilterEnvironment(const std::vector<std::string>& from, const RunOptions& options,
                                           std::string_view directory);

// $PWD when it names the current directory, symlinks and all, else what the kernel says.
Result<std::string> CurrentDirectory();

// A path of this machine as the jobs see it: below `root` without it, otherwise unchanged.
std::string InRoot(std::string_view path, std::string_view root);

// `path` made absolute against `directory`, with "." and empty parts removed; ".." is kept (symlinks).
std::string Absolute(std::string_view path, std::string_view directory);

// The command of `options`, argv as given; not its terminal. `root`: the directory of this machine that is the jobs'
// "/".
Result<v1::Command> CollectCommand(const RunOptions& options, const std::string& root);

}  // namespace vrun::cli
