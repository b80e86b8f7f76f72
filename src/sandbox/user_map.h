// SPDX-License-Identifier: Apache-2.0
// The uid and gid maps of a sandbox: inside, ids are home's; outside, they are uid_base higher.
//
// 0..65535 are always mapped; an id of the user's own above that gets a line for itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

inline constexpr uint32_t kMappedIds = 65536;

// Text for /proc/PID/uid_map. kInvalid when uid_base + id is no id any more, or there are more lines than Linux takes.
Result<std::string> IdMap(uint32_t uid_base, const std::vector<uint32_t>& ids);
// The maps of the process whose /proc/PID directory this is. Needs to run as root of the parent namespace.
Status WriteUserMaps(pid_t pid, uint32_t uid_base, const Identity& identity);

}  // namespace vrun::sandbox
