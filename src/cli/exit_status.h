// SPDX-License-Identifier: Apache-2.0
// The process's own exit statuses, and how an ended job is told.
#pragma once

#include <optional>
#include <string_view>

#include "proto/common.pb.h"

namespace vrun::cli {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitTimeLimit = 124;
inline constexpr int kExitNotStarted = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignal = 128;  // + the signal's number
inline constexpr int kExitUnknown = 255;

// What `vrun` exits with for this record; never 0 unless the command exited with 0.
int StatusOf(const v1::ExitRecord& record);
// "PENDING", "RUNNING", ...
std::string_view StateName(v1::JobState state);
bool IsOver(v1::JobState state);

}  // namespace vrun::cli
