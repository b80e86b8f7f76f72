// SPDX-License-Identifier: Apache-2.0
// What the node says about itself besides its resources: labels, taints, its place, and which GPUs are close to each
// other.
#pragma once

#include <string>

#include "base/result.h"
#include "node/agent/agent.h"
#include "proto/common.pb.h"

namespace vrun::node {

// From the options, and for GPU groups that are not given from the machine: GPUs of one NUMA node are close, as the
// NVIDIA driver tells in `proc`/driver/nvidia/gpus and the kernel in `sys`/bus/pci/devices. kInvalid names the option
// that is wrong.
Result<v1::NodeFacts> DescribeNode(const NodeFactsOptions& options, uint32_t gpus, const std::string& proc = "/proc",
                                   const std::string& sys = "/sys");

}  // namespace vrun::node
