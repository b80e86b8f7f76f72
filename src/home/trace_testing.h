// SPDX-License-Identifier: Apache-2.0
// For the tests of traces.
#pragma once

#include <string>
#include <vector>

#include "proto/common.pb.h"

namespace vrun::home {

inline v1::Command Command(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {},
                           const std::string& directory = "/project") {
  v1::Command command;
  for (const auto& word : argv) command.add_argv(word);
  for (const auto& variable : environment) command.add_environment(variable);
  command.set_directory(directory);
  return command;
}

}  // namespace vrun::home
