// SPDX-License-Identifier: Apache-2.0
// A command inside of an environment: its root, with /proc, /dev and the network of this machine, process ids, mounts
// and a host name of its own, and this cluster's configuration for the `vrun` inside.
//
// All shells of an environment share one set of namespaces, since two mounts of one overlay would not know of each
// other. A first process holds them (its pid is in the environment's `init`), waits for the environment's lock, which
// every shell shares, and ends when the last one has: with it ends all that was left running inside.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "cli/host/environments.h"

namespace vrun::cli {

// Runs `command` (empty: a shell) to its end, on our standard descriptors; its exit status, 128+n for a signal.
// `places`: where this machine's configuration is. kUnavailable: the mounts could not be made.
Result<int> RunInEnvironment(const Environments& environments, const std::string& name,
                             const std::vector<std::string>& command, const Places& places);

}  // namespace vrun::cli
