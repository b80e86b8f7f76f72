// SPDX-License-Identifier: Apache-2.0
// What a pod was given of its node's GPUs: plain values. The agent fills them in from the order and from what it made
// for it (mig.h, mps.h); inject/injection.h turns them into what the sandbox adds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vrun::gpu {

// One MIG instance of the allotment's only GPU.
struct MigInstance {
  uint32_t gpu_instance = 0;      // id of NVML, unique on the GPU
  uint32_t compute_instance = 0;  // id of NVML, unique in the GPU instance
  // Minors of nvidia-caps: the keys gpu<minor>/gi<gpu_instance>/access and gpu<minor>/gi<gpu_instance>/
  // ci<compute_instance>/access of /proc/driver/nvidia-caps/mig-minors.
  uint32_t gpu_instance_cap = 0;
  uint32_t compute_instance_cap = 0;
  std::string uuid;  // "MIG-..."
};

// A share of the allotment's only GPU, served by the MPS daemon of this GPU and user.
struct MpsShare {
  std::string pipe_directory;  // on the node; holds the daemon's sockets
  uint32_t percentage = 100;   // of the multiprocessors
  uint64_t memory_bytes = 0;   // 0: no limit of its own
};

// Whole GPUs unless one of the optional parts is there. Never two of these.
struct Allotment {
  std::vector<uint32_t> gpus;  // numbers of NodeFacts.gpus, ascending
  std::optional<MigInstance> mig;
  std::optional<MpsShare> mps;
  bool time_slice = false;  // others compute on this GPU in turns
};

}  // namespace vrun::gpu
