// SPDX-License-Identifier: Apache-2.0
// GPUs and their use, for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/base/json.h"
#include "cli/base/output.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// Which GPUs to show; "" and empty: all.
struct GpuFilter {
  std::string pool;
  std::vector<std::string> nodes;
};

// One line a GPU, in order of nodes. Nodes that describe no GPUs show their number and type.
std::string FormatGpus(const v1::NodeList& nodes, const GpuFilter& filter, OutputFormat format, bool headers);
// Running jobs that use GPUs, the busiest first.
std::string FormatTop(const v1::JobList& jobs, OutputFormat format, bool headers);

// "83 % of 2 x h100, 71G peak, 0.42 kWh"; "" if nothing is known.
std::string UseText(const v1::JobInfo& job);
// Null if nothing is known.
void WriteUse(const v1::JobInfo& job, JsonWriter* json);

}  // namespace vrun::cli
