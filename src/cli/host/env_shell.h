// SPDX-License-Identifier: Apache-2.0
// Runs a command inside an environment: with the environment's root, this machine's /proc, /dev and network, its own
// process ids, mounts and host name, and this cluster's configuration for the `vrun` inside.
//
// All shells of an environment share one set of namespaces, because two mounts of one overlay would not see each
// other's changes. A first process holds the namespaces; its pid is in the environment's `init`. Every shell shares the
// environment's lock. The first process waits for that lock and ends when the last shell has ended, and everything left
// running inside ends with it.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "cli/host/environments.h"

namespace vrun::cli {

// Runs `command` (empty: a shell) to its end on our standard descriptors. Returns its exit status, 128+n for a signal.
// `places`: where this machine's configuration is. kUnavailable: the mounts could not be made.
Result<int> RunInEnvironment(const Environments& environments, const std::string& name,
                             const std::vector<std::string>& command, const Places& places);

}  // namespace vrun::cli
