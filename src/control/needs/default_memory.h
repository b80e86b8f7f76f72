// SPDX-License-Identifier: Apache-2.0
// The memory of a job that asks for none: what is booked for it, and what it may use (docs/decisions/0051). Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/store/store.h"

namespace vrun::control {

// What a node has to share among jobs.
struct NodeSize {
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int64_t gpus = 0;
  int64_t gpu_memory_bytes = 0;  // of the smallest GPU; 0: not known
  std::string gpu_type;
  bool operator==(const NodeSize&) const = default;
};
NodeSize SizeOf(const NodeRow& node);

// The job's part of nine tenths of a node. On a node with GPUs half of that memory goes with the processors and half
// with the GPUs. So jobs that book this never wait for memory because of each other. Of the nodes on which the job
// fits, the smallest part. 0: there is no such node.
int64_t DefaultMemory(const std::vector<NodeSize>& nodes, const Needs& needs);

// What such a job may use on this node, in bytes: what is booked, and at least 2 GiB if the node has them.
uint64_t DefaultLimit(int64_t booked_bytes, const NodeSize& node);

}  // namespace vrun::control
