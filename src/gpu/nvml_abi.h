// SPDX-License-Identifier: Apache-2.0
// The binary interface of libnvidia-ml.so.1, as far as it is used: numbers and structures as NVIDIA's public nvml.h has
// them, checked on a real card (decision 32). Included by nvml.cc and by the fake library of the tests, by nobody else.
#pragma once

#include <cstdint>

namespace vrun::gpu::abi {

using Return = int;
using Device = void*;
using GpuInstance = void*;
using ComputeInstance = void*;
using EventSet = void*;
using GpmSample = void*;

enum : Return {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kGpuIsLost = 15,
  kInUse = 19,
  kInsufficientResources = 23,
  kVersionMismatch = 25,
  kUnknown = 999,
};

// The version word of a structure: its size and its number.
template <typename T>
constexpr uint32_t Version(uint32_t number) {
  return static_cast<uint32_t>(sizeof(T)) | (number << 24);
}

struct MemoryV2 {
  uint32_t version;  // Version<MemoryV2>(2)
  uint64_t total, reserved, free, used;
};
static_assert(sizeof(MemoryV2) == 40);

struct Memory {
  uint64_t total, free, used;
};

struct Pci {
  char bus_id_legacy[16];
  uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(Pci) == 68);

struct Utilization {
  uint32_t gpu, memory;  // percent of the last sample period
};

struct ProcessInfo {
  uint32_t pid;
  uint64_t used_memory;  // bytes; all ones: not known
  uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

struct ProcessSample {
  uint32_t pid;
  uint64_t time_us;
  uint32_t sm, memory, encoder, decoder;  // percent
};
static_assert(sizeof(ProcessSample) == 32);

struct EventData {
  Device device;
  uint64_t type, data;  // data: the XID
  uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(EventData) == 32);
constexpr uint64_t kEventXid = 0x8;

// The profile calls: version 3 answers on current drivers, 2 and 1 on older ones.
struct GpuInstanceProfileV1 {
  uint32_t id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
  uint64_t memory_mib;
};
struct GpuInstanceProfileV2 {
  uint32_t version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
  uint64_t memory_mib;
  char name[96];
};
struct GpuInstanceProfileV3 {
  uint32_t version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
  uint64_t memory_mib;
  char name[96];
  uint32_t capabilities;
};
constexpr uint32_t kGpuInstanceProfiles = 0x14;  // numbers to ask for
constexpr uint32_t kProfileMediaExtensions = 7;  // 1g+me: no capability says so

struct GpuInstancePlacement {
  uint32_t start, size;  // memory slices
};
struct GpuInstanceInfo {
  Device device;
  uint32_t id, profile_id;
  GpuInstancePlacement placement;
};
struct ComputeInstanceProfile {
  uint32_t id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};
struct ComputeInstanceInfo {
  Device device;
  GpuInstance gpu_instance;
  uint32_t id, profile_id;
  GpuInstancePlacement placement;
};
constexpr uint32_t kComputeInstanceProfiles = 8;

struct GpmMetric {
  uint32_t id;
  Return result;
  double value;
  char *short_name, *long_name, *unit;
};
// The library's own array is as long as its list of metrics, which grows. It reads no more than `count`.
struct GpmMetrics {
  uint32_t version;  // plain 1, without the size
  uint32_t count;
  GpmSample first, second;
  GpmMetric metrics[8];
};
struct GpmSupport {
  uint32_t version;  // plain 1
  uint32_t supported;
};
constexpr uint32_t kGpmSmUtilization = 2;

constexpr uint32_t kP2pNvlink = 2;            // nvmlDeviceGetP2PStatus
constexpr uint32_t kTopologyHostBridge = 30;  // nvmlDeviceGetTopologyCommonAncestor: below it one PCIe tree
constexpr uint32_t kUncorrected = 1, kVolatile = 0;
constexpr uint32_t kThresholdSlowdown = 1;

}  // namespace vrun::gpu::abi
