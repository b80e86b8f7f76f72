// SPDX-License-Identifier: Apache-2.0
#include "gpu/inventory.h"

#include <algorithm>
#include <bit>

#include "gpu/gpu_names.h"

namespace vrun::gpu {
namespace {

constexpr uint32_t kVolta = 7;  // MPS of older ones has no separate address spaces

Status Describe(Nvml* nvml, Nvml::Device device, v1::Gpu* gpu) {
  VRUN_ASSIGN(*gpu->mutable_uuid(), nvml->Uuid(device));
  VRUN_ASSIGN(*gpu->mutable_product(), nvml->Name(device));
  gpu->set_type(GpuType(gpu->product()));
  VRUN_ASSIGN(const Nvml::Memory memory, nvml->MemoryOf(device));
  gpu->set_memory_bytes(memory.total);
  VRUN_ASSIGN(*gpu->mutable_pci_bus_id(), nvml->PciBusId(device));
  VRUN_ASSIGN(const uint32_t minor, nvml->Minor(device));
  gpu->set_minor(minor);
  if (const Result<uint32_t> numa = nvml->NumaNode(device)) gpu->set_numa_node(*numa);
  gpu->set_mig(nvml->MigMode(device).value_or(false));
  gpu->set_mps(!gpu->mig() && nvml->CapabilityMajor(device).value_or(0) >= kVolta);
  return {};
}

// Masks of the connected components.
std::vector<uint32_t> Components(size_t count, const std::vector<std::vector<bool>>& edge) {
  std::vector<uint32_t> components;
  uint32_t seen = 0;
  for (size_t first = 0; first < count; ++first) {
    if ((seen >> first & 1) != 0) continue;
    uint32_t mask = 1u << first, before = 0;
    while (mask != before) {
      before = mask;
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) {
          if ((mask >> i & 1) != 0 && i < edge.size() && j < edge[i].size() && edge[i][j]) mask |= 1u << j;
        }
      }
    }
    seen |= mask;
    components.push_back(mask);
  }
  return components;
}

bool HasPair(const std::vector<uint32_t>& masks) {
  return std::any_of(masks.begin(), masks.end(), [](uint32_t mask) { return std::popcount(mask) > 1; });
}

bool HasPair(const std::vector<std::vector<bool>>& edge) {
  return std::any_of(edge.begin(), edge.end(),
                     [](const auto& row) { return std::find(row.begin(), row.end(), true) != row.end(); });
}

}  // namespace

std::string Inventory::Type() const {
  for (const v1::Gpu& gpu : gpus) {
    if (gpu.type() != gpus[0].type()) return "";
  }
  return gpus.empty() ? "" : gpus[0].type();
}

uint64_t Inventory::MemoryBytes() const {
  for (const v1::Gpu& gpu : gpus) {
    if (gpu.memory_bytes() != gpus[0].memory_bytes()) return 0;
  }
  return gpus.empty() ? 0 : gpus[0].memory_bytes();
}

uint32_t Inventory::BadMask() const {
  uint32_t mask = 0;
  for (size_t i = 0; i < gpus.size() && i < kMostGpus; ++i) mask |= gpus[i].problem().empty() ? 0 : 1u << i;
  return mask;
}

void Inventory::Describe(v1::Resources* resources, v1::NodeFacts* facts) const {
  resources->set_gpus(static_cast<uint32_t>(gpus.size()));
  if (resources->gpu_type().empty()) resources->set_gpu_type(Type());
  resources->set_gpu_memory_bytes(MemoryBytes());
  facts->mutable_gpus()->Assign(gpus.begin(), gpus.end());
  facts->set_gpu_driver(driver);
  facts->set_mig_model(mig_model);
  facts->set_bad_gpus(facts->bad_gpus() | BadMask());
  if (facts->gpu_groups().empty()) facts->mutable_gpu_groups()->Assign(groups.begin(), groups.end());
}

std::vector<uint32_t> Groups(const std::vector<v1::Gpu>& gpus, const std::vector<std::vector<bool>>& linked,
                             const std::vector<std::vector<bool>>& near) {
  const size_t count = std::min<size_t>(gpus.size(), kMostGpus);
  std::vector<std::vector<bool>> numa(count, std::vector<bool>(count));
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      numa[i][j] =
          i != j && gpus[i].has_numa_node() && gpus[j].has_numa_node() && gpus[i].numa_node() == gpus[j].numa_node();
    }
  }
  // Where all are linked by NVLink switches, PCIe does not matter, but each half still has its own processors.
  const std::vector<std::vector<bool>>* orders[] = {&linked, &near, &numa};
  for (const auto* edge : orders) {
    if (edge == &near && HasPair(linked)) continue;
    std::vector<uint32_t> masks = Components(count, *edge);
    if (masks.size() > 1 && HasPair(masks)) return masks;
  }
  return {};
}

Result<Inventory> TakeInventory(Nvml* nvml) {
  Inventory inventory;
  inventory.driver = nvml->DriverVersion().value_or("");
  VRUN_ASSIGN(const uint32_t count, nvml->Count());
  const size_t known = std::min(count, kMostGpus);
  std::vector<Nvml::Device> devices;
  for (uint32_t i = 0; i < known; ++i) {
    v1::Gpu gpu;
    const Result<Nvml::Device> device = nvml->At(i);
    const Status described = device ? Describe(nvml, *device, &gpu) : Status(device.error());
    if (!described) gpu.set_problem(described.error().message());
    devices.push_back(device.value_or(nullptr));
    inventory.gpus.push_back(std::move(gpu));
  }
  std::vector<std::vector<bool>> linked(known, std::vector<bool>(known)), near = linked;
  for (size_t i = 0; i < known; ++i) {
    for (size_t j = 0; j < known; ++j) {
      if (i == j || devices[i] == nullptr || devices[j] == nullptr) continue;
      linked[i][j] = nvml->LinkedByNvlink(devices[i], devices[j]).value_or(false);
      near[i][j] = nvml->OnePcieTree(devices[i], devices[j]).value_or(false);
    }
  }
  inventory.groups = Groups(inventory.gpus, linked, near);
  for (const v1::Gpu& gpu : inventory.gpus) {
    if (gpu.mig() && inventory.mig_model.empty()) inventory.mig_model = MigModel(gpu.product());
  }
  return inventory;
}

void RefreshInventory(Nvml* nvml, Inventory* inventory) {
  inventory->mig_model.clear();
  for (uint32_t i = 0; i < inventory->gpus.size(); ++i) {
    v1::Gpu& gpu = inventory->gpus[i];
    const Result<Nvml::Device> device = nvml->At(i);
    if (device) {
      if (const Result<bool> mig = nvml->MigMode(*device)) {
        gpu.set_mig(*mig);
        gpu.set_mps(!*mig && nvml->CapabilityMajor(*device).value_or(0) >= kVolta);
        // The minor may have changed with the mode.
        if (const Result<uint32_t> minor = nvml->Minor(*device)) gpu.set_minor(*minor);
      }
    }
    if (gpu.mig() && inventory->mig_model.empty()) inventory->mig_model = MigModel(gpu.product());
  }
}

}  // namespace vrun::gpu
