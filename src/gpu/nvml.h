// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library, loaded while we run: a machine without GPUs has none, and older drivers lack calls.
//
// This file and nvml_abi.h are the only ones that know it. What the calls cost, and which versions of structures work,
// is in decision 32: all questions of one GPU take about 28 ms, so nobody asks on the thread that serves jobs.
//
// Errors: kNotFound (no library, no such thing), kUnsupported (the GPU or the driver has no such call), kUnavailable
// (the GPU has fallen off the bus, or the driver is not loaded), kDenied, kExhausted (MIG: no room), kExists (in use).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

class Nvml {
 public:
  // Valid while the Nvml lives. Changes when the MIG mode of the GPU is changed.
  using Device = void*;

  struct Memory {
    uint64_t total = 0, used = 0, free = 0;  // bytes
  };
  struct Process {
    uint32_t pid = 0;    // in the pid namespace of this process
    uint64_t bytes = 0;  // of GPU memory; 0: not known
    uint32_t gpu_instance = kNoInstance;
  };
  struct ProcessUse {
    uint32_t pid = 0;
    uint32_t sm_percent = 0;
    uint64_t time_us = 0;  // of the driver's sample
  };
  struct RemappedRows {
    bool pending = false;  // takes effect at the next reset
    bool failed = false;   // the GPU has no spare rows left
  };
  struct MigProfile {
    uint32_t id = 0;      // for Create
    uint32_t slices = 0;  // compute slices: the number before "g"
    uint32_t memory_mib = 0;
    uint32_t most = 0;   // instances that fit
    bool media = false;  // "+me"
    uint32_t size = 0;   // memory slices; 0: not known
  };
  // A GPU instance with the one compute instance that takes all of it.
  struct Instance {
    uint32_t gpu_instance = 0;
    uint32_t compute_instance = kNoInstance;  // kNoInstance: it has none, or more than one
    uint32_t profile_id = 0;
    uint32_t start = 0, size = 0;  // memory slices
    std::string uuid;              // "MIG-..."; "" without a compute instance
    Device device = nullptr;       // for MemoryOf; null without a compute instance
  };
  struct Xid {
    uint32_t gpu = 0;  // index
    uint32_t number = 0;
    uint32_t gpu_instance = kNoInstance;
  };
  static constexpr uint32_t kNoInstance = 0xffffffff;

  // `driver_root`: the driver's own "/". kNotFound: there is no library, so there are no GPUs of NVIDIA.
  static Result<std::unique_ptr<Nvml>> Open(const std::string& driver_root);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // All calls block, and may be made from any thread.
  Result<std::string> DriverVersion();
  Result<uint32_t> Count();
  Result<Device> At(uint32_t index);
  Result<std::string> Name(Device device);
  Result<std::string> Uuid(Device device);
  Result<std::string> PciBusId(Device device);  // lower case: "00000000:1b:00.0"
  Result<uint32_t> Minor(Device device);
  Result<Memory> MemoryOf(Device device);
  Result<uint32_t> CapabilityMajor(Device device);  // 9: Hopper
  Result<uint32_t> NumaNode(Device device);         // 12 ms
  Result<bool> LinkedByNvlink(Device one, Device two);
  // Both below one PCIe host bridge.
  Result<bool> OnePcieTree(Device one, Device two);

  Result<uint32_t> UtilizationPercent(Device device);
  Result<std::vector<Process>> Processes(Device device);
  // Samples after `since_us`, the largest time_us of the answer before. Empty: none is newer.
  Result<std::vector<ProcessUse>> ProcessUses(Device device, uint64_t since_us);
  Result<uint64_t> EnergyMillijoules(Device device);  // since the driver was loaded
  Result<uint32_t> Temperature(Device device);        // degrees Celsius
  Result<uint32_t> SlowdownTemperature(Device device);
  Result<uint64_t> UncorrectedEccErrors(Device device);  // since the driver was loaded
  Result<RemappedRows> Remapped(Device device);

  // --- MIG
  Result<bool> MigMode(Device device);  // false also where the GPU cannot be cut
  Result<std::vector<MigProfile>> MigProfiles(Device device);
  Result<std::vector<Instance>> Instances(Device device);
  // The GPU instance and its compute instance; destroys the first if the second fails.
  Result<Instance> CreateInstance(Device device, const MigProfile& profile, uint32_t start);
  // With all its compute instances. kExists: a process still uses it.
  Status DestroyInstance(Device device, uint32_t gpu_instance);

  // --- Performance samples (GPM, Hopper and later)
  class Sample {
   public:
    ~Sample();
    Sample(const Sample&) = delete;

   private:
    friend class Nvml;
    explicit Sample(Nvml* nvml) : nvml_(nvml) {}
    Nvml* nvml_;
    void* raw_ = nullptr;
  };
  // kUnsupported: this GPU has no GPM. `gpu_instance`: of that MIG instance alone.
  Result<std::unique_ptr<Sample>> TakeSample(Device device, uint32_t gpu_instance = kNoInstance);
  // The share of time in which multiprocessors were busy, in percent, between two samples of one GPU.
  Result<double> SmPercent(const Sample& first, const Sample& second);

  // --- Events
  // XIDs of all GPUs from now on. One thread calls Wait, no other may.
  class Events {
   public:
    ~Events();
    Events(const Events&) = delete;
    // kTimeout: none came within `timeout_ms`.
    Result<Xid> Wait(uint32_t timeout_ms);

   private:
    friend class Nvml;
    explicit Events(Nvml* nvml) : nvml_(nvml) {}
    Nvml* nvml_;
    void* raw_ = nullptr;
    std::vector<Device> devices_;
  };
  Result<std::unique_ptr<Events>> Watch();

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);
  Result<std::string> Text(int (*call)(Device, char*, unsigned), const char* name, Device device);
  std::unique_ptr<Calls> calls_;
};

}  // namespace vrun::gpu
