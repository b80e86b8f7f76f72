// SPDX-License-Identifier: Apache-2.0
// The kept output of a job, copied to our stdout and stderr.
#pragma once

#include <cstdint>

#include "cli/home_connection.h"

namespace vrun::cli {

// `follow`: until the job is over. kUnavailable when our own stdout is gone.
Status CopyLog(const HomeConnection& home, uint64_t job, bool follow);

}  // namespace vrun::cli
