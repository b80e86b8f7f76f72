// SPDX-License-Identifier: Apache-2.0
// The sandbox's own /dev: the harmless nodes, the links that every program expects, places for pts, shm and mqueue.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

// A detached tmpfs. Its nodes work inside because the file system is the host's: one made inside a user namespace would
// refuse to open any. Where host root may not make nodes (a container), the host's own are bound onto empty files.
Result<UniqueFd> MakeDevices(uint32_t uid_base);

}  // namespace vrun::sandbox
