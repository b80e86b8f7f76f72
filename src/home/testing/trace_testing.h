// SPDX-License-Identifier: Apache-2.0
// For the tests of traces.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "home/ahead/trace.h"
#include "proto/common.pb.h"
#include "store/format/object_id.h"

namespace vrun::home {

constexpr uint64_t kUnit = store::kUnitBytes;

inline Trace Make(std::vector<Trace::File> files, std::vector<Trace::Range> ranges) {
  return {std::move(files), std::move(ranges)};
}

inline v1::Command Command(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {},
                           const std::string& directory = "/project") {
  v1::Command command;
  for (const auto& word : argv) command.add_argv(word);
  for (const auto& variable : environment) command.add_environment(variable);
  command.set_directory(directory);
  return command;
}

}  // namespace vrun::home
