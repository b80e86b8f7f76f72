// SPDX-License-Identifier: Apache-2.0
// The lock that a daemon has on its directory.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

// Opens `path`, made with mode 0600 if it is not there, and takes its exclusive flock(2), which lasts until the result
// is closed. A daemon that was killed while it forked leaves a child that has the lock until it executes its program,
// so this waits for 2 s. kExists: somebody else has it. Any thread.
Result<UniqueFd> LockFile(const std::string& path);

}  // namespace vrun
