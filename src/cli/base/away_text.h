// SPDX-License-Identifier: Apache-2.0
// How much of an away job's root is still on its way, in words.
#pragma once

#include <string>

#include "cli/base/table.h"
#include "proto/local.pb.h"

namespace vrun::cli {

inline std::string AwayText(const v1::AwayState& state) {
  if (state.safe()) return "safe to disconnect";
  if (state.bytes() == 0) return "not safe to disconnect yet";
  return "not safe to disconnect yet: " + std::to_string(state.files_left()) +
         (state.files_left() == 1 ? " file" : " files") + ", " + FormatBytes(state.bytes_left()) + " still to go";
}

}  // namespace vrun::cli
