// SPDX-License-Identifier: Apache-2.0
// What a request for GPUs is on the GPUs of one node.
//
// Memory is compared by what the trade calls it: a GPU has as many GB as it has GiB, rounded up (an "H100 80GB" has
// 79.6 GiB), an instance as many as its profile's name says, a share its part of the GPU's. Drivers keep some per cent
// of it for themselves.
#pragma once

#include <optional>

#include "sched/model/model.h"

namespace vrun::sched::core {

// Bytes of one GPU of the node by the rule above; 0: unknown.
int64_t NominalGpuMemory(const NodeSpec& node);

// The request with its kind decided. Of an open request the smallest part of a GPU that has the memory: an instance
// where GPUs are in MIG mode, else a share, and where GPUs cannot be shared in this way, or nearly all of one is
// needed, a whole GPU. An instance goes before a share of the same size. Shares are multiples of a hundredth. nullopt:
// the node's GPUs have not so much memory, or nobody knows how much they have.
std::optional<Request> OnNode(const Request& request, const NodeSpec& node);

}  // namespace vrun::sched::core
