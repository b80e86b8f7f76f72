// SPDX-License-Identifier: Apache-2.0
// Slurm's patterns in the names of output files:
//   %j %A %J  the job's id             %x  the job's name          %u  the user's name
//   %N        the node's name          %a %n %t  0: there is one task on one node, and no array
//   %s        "batch"                  %%  a percent sign
// A number after the % pads numbers with zeros: %4j. A name that begins with a backslash is taken literally.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::cli {

struct LogNames {
  std::string job_name;
  std::string user;
};

// Expands all but %j, %4j, %N and %%, which home expands because id and node are not known yet. kInvalid: an unknown
// pattern.
Result<std::string> ExpandLogPath(const std::string& pattern, const LogNames& names);

}  // namespace vrun::cli
