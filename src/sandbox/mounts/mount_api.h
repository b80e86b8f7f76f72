// SPDX-License-Identifier: Apache-2.0
// The kernel's descriptor-based mount calls, as Results. A mount is created detached, configured, and attached by
// descriptor, so a path of a job's root is never resolved as a path of the host.
#pragma once

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

using MountOptions = std::vector<std::pair<std::string, std::string>>;  // an empty value: a flag

// A new detached file system of `type`. `attributes`: MOUNT_ATTR_*.
Result<UniqueFd> NewMount(const char* type, const MountOptions& options, unsigned attributes);
// A detached copy of the mount at dir/path, without the mounts below it.
Result<UniqueFd> CloneMount(int dir, const std::string& path, unsigned attributes);
Status AttachMount(int mount, int dir, const std::string& path);
// Adds attributes to a mount that is not yet attached, or was made here.
Status AddAttributes(int mount, unsigned attributes);

// Opens `path` below `root` (O_PATH), symlinks resolved as if `root` were /. `resolve`: RESOLVE_* in addition.
Result<UniqueFd> OpenInRoot(int root, const std::string& path, int flags, uint64_t resolve = 0);

}  // namespace vrun::sandbox
