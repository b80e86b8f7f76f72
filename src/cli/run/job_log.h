// SPDX-License-Identifier: Apache-2.0
// Copies the stored output of a job to our stdout and stderr, and reports its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/base/home_connection.h"

namespace vrun::cli {

struct LogEnd {
  std::optional<v1::Finished> finished;  // how the job ended, if home knows it
  std::string last_note;                 // the last line that home itself wrote, unchanged
};

// `follow`: until the job ends. kUnavailable when our own stdout is closed.
Result<LogEnd> CopyLog(const HomeConnection& home, uint64_t job, bool follow);

// Blocks until the job has ended. kNotFound: no such job.
Result<v1::JobInfo> WaitForJob(const HomeConnection& home, uint64_t job);

}  // namespace vrun::cli
