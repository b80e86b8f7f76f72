// SPDX-License-Identifier: Apache-2.0
// The uid and gid maps of a sandbox: inside, ids are home's; outside, they are the tenant's on this node
// (base/id_map.h).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/id_map.h"
#include "base/result.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Text for /proc/PID/uid_map and gid_map. kInvalid when there is no room above the base.
Result<std::string> IdMapText(const IdMap& ids);
// kInvalid: this user is, or is in a group, of which the map does not know.
Status CheckMapped(const IdMap& ids, const Identity& identity);
// The maps of the process whose /proc/PID directory this is. Needs to run as root of the parent namespace.
Status WriteUserMaps(pid_t pid, const IdMap& ids, const Identity& identity);

}  // namespace vrun::sandbox
