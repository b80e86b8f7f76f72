// SPDX-License-Identifier: Apache-2.0
#include "sched/model/fit.h"

namespace vrun::sched::core {
namespace {

constexpr int32_t kShareStep = 10;  // MPS limits processors in hundredths

int64_t Gigabytes(int64_t bytes) { return (bytes + kGiB - 1) / kGiB; }

// What one GPU, share or instance has, by name.
int64_t MemoryOf(const Request& r, int64_t gpu) {
  if (r.mig != 0) return mig::NominalMemory(r.mig) * kGiB;
  return r.gpu_milli > 0 ? gpu * r.gpu_milli / kMilli : gpu;
}

}  // namespace

int64_t NominalGpuMemory(const NodeSpec& node) { return Gigabytes(node.gpu_memory) * kGiB; }

std::optional<Request> OnNode(const Request& request, const NodeSpec& node) {
  if (request.gpu_memory == 0) return request;
  const int64_t gpu = NominalGpuMemory(node);
  if (!request.open()) {
    if (MemoryOf(request, gpu) < request.gpu_memory) return std::nullopt;
    return request;
  }
  Request fitted = request;
  const mig::Model model = mig::FindModel(node.mig_model);
  const mig::Profile profile = mig::SmallestWith(model, Gigabytes(request.gpu_memory));
  const bool cut = profile != 0 && node.usable_for(Sharing::kMig) != 0;
  const int32_t instance = cut ? mig::Size(model, profile) * kMilli / mig::Slices(model) : INT32_MAX;
  int32_t share = INT32_MAX;
  if (gpu >= request.gpu_memory && node.usable_for(Sharing::kWhole) != 0) {
    const int64_t exact = (request.gpu_memory * kMilli + gpu - 1) / gpu;
    const int64_t milli = (exact + kShareStep - 1) / kShareStep * kShareStep;
    const bool shared = milli < kMilli && node.usable_for(request.sharing) != 0;
    share = shared ? static_cast<int32_t>(milli) : kMilli;
  }
  if (instance == INT32_MAX && share == INT32_MAX) return std::nullopt;
  if (instance <= share) {
    fitted.mig = profile;
    fitted.sharers = 0;
  } else if (share < kMilli) {
    fitted.gpu_milli = share;
  } else {
    fitted.gpus = 1;
    fitted.sharers = 0;
  }
  return fitted;
}

}  // namespace vrun::sched::core
