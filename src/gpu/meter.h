// SPDX-License-Identifier: Apache-2.0
// What pods use of their GPUs: readings of the driver, every few seconds, added up for each pod.
//
// What is measured depends on what a pod has:
//
//   whole GPUs     utilization, SM activity by GPM (Hopper and later), memory, energy of each GPU
//   a share        utilization of the pod's own processes; memory of these; energy by its part of the GPU
//   an instance    SM activity of the instance by GPM, also taken as its utilization, because the driver tells no
//   other;
//                  memory of the instance; energy by its part of the GPU
//
// One thread; Tick blocks for about 10 ms for each GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/nvml.h"
#include "proto/common.pb.h"

namespace vrun::gpu {

class Meter {
 public:
  explicit Meter(Nvml* nvml) : nvml_(nvml) {}

  struct Pod {
    uint64_t job = 0;
    uint32_t attempt = 0;
    uint32_t pod = 0;
    std::vector<uint32_t> gpus;
    uint32_t milli = 1000;  // its part of each GPU
    bool shared = false;    // others may be on its GPU
    std::optional<uint32_t> gpu_instance;
  };
  // Begins with what the GPUs say now.
  void Add(const std::string& name, const Pod& pod);
  // The last reading of a pod, which is forgotten.
  std::optional<v1::GpuUsage> Remove(const std::string& name);
  // Reads everything and returns the state of all pods. `pod_of`: the name of the pod that a process on this GPU
  // belongs to, "" if to none.
  std::vector<v1::GpuUsage> Tick(const std::function<std::string(uint32_t gpu, uint32_t pid)>& pod_of);

 private:
  struct Gpu {  // since the last reading
    uint32_t utilization = 0;
    std::optional<uint64_t> energy;
    uint64_t energy_delta = 0;
    std::optional<double> sm;
    std::unique_ptr<Nvml::Sample> sample;
    uint64_t used = 0;
    uint64_t newest_us = 0;                           // of the samples of processes
    std::map<std::string, uint64_t> process_bytes;    // by pod
    std::map<std::string, uint32_t> process_percent;  // by pod
    int64_t read_us = 0;
  };
  struct State {
    Pod pod;
    v1::GpuUsage usage;
    int64_t read_us = 0;
    std::unique_ptr<Nvml::Sample> sample;  // of its instance
  };
  using PodOf = std::function<std::string(uint32_t, uint32_t)>;
  void ReadFor(const std::vector<uint32_t>& gpus, const std::string& name);
  void ReadGpu(uint32_t number, const PodOf& pod_of);
  void AddTo(const std::string& name, State* state);
  void ReadInstance(State* state, double* sm, uint64_t* bytes);

  Nvml* nvml_;
  std::map<uint32_t, Gpu> gpus_;
  std::map<std::string, State> pods_;
  PodOf pod_of_ = [](uint32_t, uint32_t) { return std::string(); };
};

// For the DCGM exporter's --hpc-job-mapping-dir: file names are "<gpu>" or "<gpu>.<instance>", lines are job ids. The
// exporter then labels its values with `hpc_job`.
Status WriteJobFile(const std::string& directory, const std::string& name, const std::vector<uint64_t>& jobs);

}  // namespace vrun::gpu
