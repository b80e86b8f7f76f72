// SPDX-License-Identifier: Apache-2.0
// Names of GPUs: from what the driver calls a product to what users ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::gpu {

// "h100" of "NVIDIA H100 80GB HBM3", "a100-80" of "NVIDIA A100-SXM4-80GB". An unknown product gets a name made of its
// own words: "rtx-a6000" of "NVIDIA RTX A6000". Lower case letters, digits and dashes; "gpu" if nothing is left.
std::string GpuType(std::string_view product);

// The name of its MIG geometry (sched/model/mig.h): "h100-80gb". "": it cannot be cut, or is unknown.
std::string MigModel(std::string_view product);

// The name of a MIG profile, made as `nvidia-smi mig -lgip` has them (decision 32): the compute slices, and the memory
// in eighths of the GPU's. "1g.10gb", "1g.10gb+me".
std::string MigProfileName(uint32_t slices, uint32_t memory_mib, uint64_t gpu_memory_bytes, bool media);

}  // namespace vrun::gpu
