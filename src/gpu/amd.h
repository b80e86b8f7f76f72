// SPDX-License-Identifier: Apache-2.0
// GPUs of AMD: what the kernel's amdkfd driver says of them in /sys/class/kfd/kfd/topology (its documentation is the
// header kfd_topology.h of Linux and the library libhsakmt). No library of the vendor is needed.
//
// Jobs bring their own ROCm. A sandbox adds /dev/kfd and one /dev/dri/renderD* for each GPU, which the device filter
// allows; the runtime shows only GPUs whose render node it may open.
//
// Not yet: metering, health, partitions (SPX, CPX). Tried on a copied tree, not on a card.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/inventory.h"
#include "proto/common.pb.h"
#include "proto/supervisor.pb.h"

namespace vrun::gpu {

// As inventory.h has it; `minor` is that of renderD<minor>. `sys`: the node's, or that of a device root.
// kNotFound: there is no such GPU. GPUs are in the order of their PCI bus ids.
Result<Inventory> TakeAmdInventory(const std::string& sys);

// The devices of these GPUs. `proc_devices`: the text of /proc/devices, where kfd has its major. kUnavailable: amdkfd
// is not loaded. kInvalid: a number out of range.
Result<v1::GpuInjection> MakeAmdInjection(const Inventory& inventory, const std::vector<uint32_t>& gpus,
                                          const std::string& proc_devices);

// One file `properties` of the topology: lines of "name number". The value of `name`; 0 if it is not there.
uint64_t KfdProperty(std::string_view properties, std::string_view name);

}  // namespace vrun::gpu
