// SPDX-License-Identifier: Apache-2.0
// The kernel's descriptor based mount calls, as Results: a mount is made detached, configured, and attached by
// descriptor, so that no path of a job's root is ever walked as a path of the host.
#pragma once

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

using MountOptions = std::vector<std::pair<std::string, std::string>>;  // "" as value: a flag

// A new file system of `type`, not attached anywhere. `attributes`: MOUNT_ATTR_*.
Result<UniqueFd> NewMount(const char* type, const MountOptions& options, unsigned attributes);
// A detached copy of the mount at dir/path (one mount, not what is mounted below).
Result<UniqueFd> CloneMount(int dir, const std::string& path, unsigned attributes);
Status AttachMount(int mount, int dir, const std::string& path);

// Opens `path` below `root` (O_PATH), symlinks resolved as if `root` were /.
Result<UniqueFd> OpenInRoot(int root, const std::string& path, int flags);

}  // namespace vrun::sandbox
