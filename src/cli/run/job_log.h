// SPDX-License-Identifier: Apache-2.0
// The kept output of a job, copied to our stdout and stderr, and its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/base/home_connection.h"

namespace vrun::cli {

struct LogEnd {
  std::optional<v1::Finished> finished;  // how the job ended, if home knows it
  std::string last_note;                 // the last line of home's own, as it was written
};

// `follow`: until the job is over. kUnavailable when our own stdout is gone.
Result<LogEnd> CopyLog(const HomeConnection& home, uint64_t job, bool follow);

// Blocks until the job is over. kNotFound: there is none.
Result<v1::JobInfo> WaitForJob(const HomeConnection& home, uint64_t job);

}  // namespace vrun::cli
