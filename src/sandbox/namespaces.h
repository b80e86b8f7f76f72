// SPDX-License-Identifier: Apache-2.0
// A child in new user, mount, pid, uts and ipc namespaces. The network stays the node's.
#pragma once

#include <sys/types.h>

#include <functional>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

struct ClonedChild {
  pid_t pid = -1;
  UniqueFd pidfd;
};

// clone3. `inside` runs in the child, as pid 1 of the new pid namespace, must be async-signal-safe and not return.
// `cgroup`: a version 2 group that the child is born in, or -1. The user maps are the caller's to write.
Result<ClonedChild> CloneIntoNamespaces(int cgroup, const std::function<void()>& inside);

}  // namespace vrun::sandbox
