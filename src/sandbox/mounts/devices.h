// SPDX-License-Identifier: Apache-2.0
// The sandbox's own /dev: harmless device nodes, the usual links, directories for pts, shm and mqueue.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

// Returns a detached tmpfs. It must be made by the host: the kernel refuses to open device nodes on a file system made
// in a user namespace. Where host root may not create nodes (in a container), the host's own are bind-mounted over
// empty files.
Result<UniqueFd> MakeDevices(uint32_t uid_base);

}  // namespace vrun::sandbox
