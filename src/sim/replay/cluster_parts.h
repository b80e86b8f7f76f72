// SPDX-License-Identifier: Apache-2.0
// A real cluster for the simulator: parts of equal nodes, each replayed on its own. Text to tables, no I/O.
//
// The table has the columns pool,gpu_type,nodes,gpus (of each node), one part a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/replay/job_trace.h"

namespace vrun::sim {

struct ClusterPart {
  std::string pool;
  std::string gpu_type;
  int32_t nodes = 0;
  int32_t gpus = 0;  // of each node
};
using ClusterParts = std::vector<ClusterPart>;

// kInvalid with file and line. Parts without nodes or GPUs are left out; none at all is an error.
Result<ClusterParts> ReadClusterParts(const std::string& text, const std::string& name);

// Nodes and GPUs of all parts.
int64_t NodesOf(const ClusterParts& parts);
int64_t GpusOf(const ClusterParts& parts);

// The part that takes the job: of its pool and type, as far as it says them, the largest one that is large enough.
// -1: none, even if it is empty.
int32_t PartFor(const JobTrace& trace, const TraceJob& job, const ClusterParts& parts);

// The jobs that fit on one of the parts.
JobTrace OnlyFitting(const JobTrace& trace, const ClusterParts& parts);

}  // namespace vrun::sim
