// SPDX-License-Identifier: Apache-2.0
// The uid and gid maps of a sandbox: inside, ids are home's; outside, the tenant's on this node (base/id_map.h).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/id_map.h"
#include "base/result.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Text for /proc/PID/uid_map and gid_map. kInvalid when there is no room above the base.
Result<std::string> IdMapText(const IdMap& ids);
// Of a namespace inside that one, in which every id means the same.
std::string InnerIdMapText(const IdMap& ids);
// kInvalid: the map lacks this user's id or one of its groups.
Status CheckMapped(const IdMap& ids, const Identity& identity);
// Writes the maps of process `pid`. Must run as root of the parent namespace.
Status WriteUserMaps(pid_t pid, const IdMap& ids, const Identity& identity);

}  // namespace vrun::sandbox
