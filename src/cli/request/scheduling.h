// SPDX-License-Identifier: Apache-2.0
// Classes and signals by name.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// "production"; kInvalid lists the names.
Result<v1::JobClass> ParseJobClass(std::string_view name);
// The name of a class; "training" if none was given.
std::string JobClassName(v1::JobClass klass);

// "USR1", "SIGUSR1", "10"; 0: not a signal.
int ParseSignal(std::string_view text);

// Slurm's "[{R|B}:]SIG[@SECONDS]": the signal, and how long before the job's end it is sent.
struct EndSignal {
  int signal = 0;
  uint32_t grace_s = 0;               // 0: no such signal
  bool shell_only = false;            // B
  bool may_meet_maintenance = false;  // R
};
Result<EndSignal> ParseEndSignal(std::string_view text);

}  // namespace vrun::cli
