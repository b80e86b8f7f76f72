// SPDX-License-Identifier: Apache-2.0
// Sets of processors by their numbers, sorted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun {

using CpuList = std::vector<uint32_t>;

// In the kernel's format: "0-3,8". An empty list is "".
std::string FormatCpuList(const CpuList& cpus);
// kInvalid; also for more than 65536 processors. A final newline is allowed.
Result<CpuList> ParseCpuList(std::string_view text);

// The processors that this process may use. Never empty: {0} if unknown.
CpuList AllowedCpus();
// `cpus` as a bit mask of whole longs, for sched_setaffinity.
std::vector<unsigned long> CpuMask(const CpuList& cpus);

}  // namespace vrun
