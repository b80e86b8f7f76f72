// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, as its driver tells.
//
// Number i of every list and mask is index i of the driver, which orders by PCI bus. A GPU that fell off the bus keeps
// its number, and what was known of it, until the agent starts again: jobs have the numbers of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/nvml.h"
#include "proto/common.pb.h"

namespace vrun::gpu {

struct Inventory {
  std::vector<v1::Gpu> gpus;
  std::vector<uint32_t> groups;  // masks of GPUs that are closer to each other than to the rest; empty: all are alike
  std::string mig_model;         // of the GPUs in MIG mode; "": none is
  std::string driver;            // version

  // What all have in common, for a node's Resources; "" and 0 if they differ.
  std::string Type() const;
  uint64_t MemoryBytes() const;
  uint32_t BadMask() const;  // GPUs with a problem
  // As a node registers them. A type and groups that an administrator gave stay; the mask of bad GPUs grows.
  void Describe(v1::Resources* resources, v1::NodeFacts* facts) const;
};

constexpr uint32_t kMostGpus = 32;  // as many as a mask has bits

// Asks the driver. Blocks, 30 ms for each GPU. A GPU that does not answer has a `problem`.
Result<Inventory> TakeInventory(Nvml* nvml);

// Groups from which GPUs are linked: the components of NVLink, else those of PCIe trees, else NUMA nodes. Empty if
// there is only one component, or none has two GPUs. `linked`, `near`: [i][j].
std::vector<uint32_t> Groups(const std::vector<v1::Gpu>& gpus, const std::vector<std::vector<bool>>& linked,
                             const std::vector<std::vector<bool>>& near);

// What may change while we run: MIG mode, and whether the GPU answers. Keeps numbers, and everything of a GPU that is
// lost. `problems` of health.h are not touched.
void RefreshInventory(Nvml* nvml, Inventory* inventory);

}  // namespace vrun::gpu
