// SPDX-License-Identifier: Apache-2.0
// What a pod needs of the node's GPUs, read from the controller's order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/inventory.h"
#include "node/attempt_key.h"
#include "proto/control.pb.h"

namespace vrun::node {

enum class GpuPart { kNone, kWhole, kInstance, kMps, kTimeSlice };

struct GpuRequest {
  AttemptKey key;
  GpuPart part = GpuPart::kNone;
  std::vector<uint32_t> gpus;  // ascending; one, unless whole
  std::string mig_profile;     // of kInstance, and its first memory slice
  uint32_t mig_start = 0;
  uint32_t milli = 1000;      // of a share: what it is promised
  uint32_t percentage = 100;  // of a share: of the multiprocessors, at most
  uint64_t memory_bytes = 0;  // of a share: at most
  std::string owner;          // who may share an MPS daemon: user, home and user id

  bool shared() const { return part == GpuPart::kMps || part == GpuPart::kTimeSlice; }
};

// kInvalid: the order does not fit the node's GPUs.
Result<GpuRequest> ReadGpuRequest(const v1::StartAttempt& order, const gpu::Inventory& inventory);

}  // namespace vrun::node
