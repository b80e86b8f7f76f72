// SPDX-License-Identifier: Apache-2.0
// Creates a child in new user, mount, pid, uts and ipc namespaces, and perhaps a network namespace.
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

// Uses clone3. `inside` runs in the child as pid 1 of the new pid namespace; it must be async-signal-safe and must not
// return. `cgroup`: the version 2 group in which the child starts, or -1. `network`: not the node's but an empty one.
// The caller writes the user maps.
Result<ClonedChild> CloneIntoNamespaces(int cgroup, bool network, const std::function<void()>& inside);

}  // namespace vrun::sandbox
