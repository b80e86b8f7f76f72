// SPDX-License-Identifier: Apache-2.0
#include "node/gpus/gpu_request.h"

#include <algorithm>

#include "node/tenant.h"

namespace vrun::node {

Result<GpuRequest> ReadGpuRequest(const v1::StartAttempt& order, const gpu::Inventory& inventory) {
  const v1::Resources& resources = order.spec().resources();
  const v1::Placement& placement = order.placement();
  GpuRequest out;
  out.key = AttemptKey::Of(placement);
  for (uint32_t i = 0; i < gpu::kMostGpus; ++i) {
    if ((placement.gpu_mask() >> i & 1) == 0) continue;
    if (i >= inventory.gpus.size()) {
      return Error(Code::kInvalid,
                   "GPU " + std::to_string(i) + ": the node has " + std::to_string(inventory.gpus.size()));
    }
    out.gpus.push_back(i);
  }
  if (out.gpus.empty()) return out;
  const bool part = placement.has_mig_start() || resources.gpu_milli() != 0;
  if (part && out.gpus.size() != 1) return Error(Code::kInvalid, "a part of more than one GPU was placed");
  if (!part) {
    out.part = GpuPart::kWhole;
    return out;
  }
  const v1::Gpu& gpu = inventory.gpus[out.gpus[0]];
  if (placement.has_mig_start()) {
    out.part = GpuPart::kInstance;
    out.mig_profile = resources.mig_profile();
    out.mig_start = placement.mig_start();
    return out;
  }
  out.milli = resources.gpu_milli();
  if (resources.gpu_sharing() == v1::GPU_TIME_SLICE) {
    out.part = GpuPart::kTimeSlice;
    return out;
  }
  out.part = GpuPart::kMps;
  const uint32_t most = std::max(out.milli, resources.gpu_burst_milli());
  out.percentage = std::clamp<uint32_t>((most + 5) / 10, 1, 100);
  out.memory_bytes = resources.gpu_memory_bytes() != 0
                         ? resources.gpu_memory_bytes()
                         : static_cast<uint64_t>(static_cast<double>(gpu.memory_bytes()) * out.milli / 1000);
  out.owner = Tenant::Of(order).Key() + "." + std::to_string(order.spec().command().identity().uid());
  return out;
}

}  // namespace vrun::node
