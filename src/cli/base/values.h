// SPDX-License-Identifier: Apache-2.0
// Values of options, in Slurm's forms. Errors are kInvalid with "why: what to write".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::cli {

// "16G", "512M", "1.5T", "4000" (mebibytes, as in Slurm), also with B or iB after the unit. 0: no limit.
Result<uint64_t> ParseMemory(std::string_view text);
// Seconds. Accepts "minutes", "MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS". 0, "UNLIMITED", "INFINITE" give 0 =
// no limit.
Result<uint64_t> ParseTimeLimit(std::string_view text);
// "2", "0.5": thousandths of a core.
Result<uint32_t> ParseCpus(std::string_view text);
struct Gpus {
  uint32_t count = 0;
  std::string type;  // "": any
};
// "[type:]n"
Result<Gpus> ParseGpus(std::string_view text);
// A decimal job id, at least 1.
Result<uint64_t> ParseJobId(std::string_view text);
// A whole number without sign, at most `max`.
Result<uint64_t> ParseNumber(std::string_view text, uint64_t max);

}  // namespace vrun::cli
