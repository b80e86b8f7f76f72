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

// `job`: one job or element. `follow`: until it ends. kUnavailable when our own stdout is closed.
Result<LogEnd> CopyLog(const HomeConnection& home, const v1::JobSelection& job, bool follow);

// One job or element. kNotFound: there is none.
Result<v1::JobInfo> AskForJob(const HomeConnection& home, const v1::JobSelection& job);
// Blocks until it has ended. kNotFound: there is none.
Result<v1::JobInfo> WaitForJob(const HomeConnection& home, const v1::JobSelection& job);

}  // namespace vrun::cli
