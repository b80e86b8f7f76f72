// SPDX-License-Identifier: Apache-2.0
// Slurm's patterns in the names of output files:
//   %j %J     the job's id             %x  the job's name          %u  the user's name
//   %N        the node's name          %t        the rank
//   %n        the node's index         %A %a     of an array: its id and the index; else as %j and 0
//   %s        "batch"                  %%        a percent sign
// A number after the % pads numbers with zeros: %4j. A name that begins with a backslash is taken literally.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::cli {

struct LogNames {
  std::string job_name;
  std::string user;
  bool several = false;  // processes; otherwise %t and %n are 0
  bool array = false;
};

// Expands all but %j, %4j, %N, %%, of an array %A and %a, and of several processes %t and %n: home expands them,
// because ids and nodes are not known yet. kInvalid: an unknown pattern.
Result<std::string> ExpandLogPath(const std::string& pattern, const LogNames& names);

}  // namespace vrun::cli
