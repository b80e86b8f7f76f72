// SPDX-License-Identifier: Apache-2.0
// Alibaba's openb 2023 tables: pods that ask for whole GPUs or a share of one, and nodes of several GPU models.
//
//   pods   name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,...]   gpu_spec: admissible models, '|' between them
//   nodes  sn,cpu_milli,memory_mib,gpu,model
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/replay/csv.h"

namespace vrun::sim {

inline constexpr int32_t kMilliPerGpu = 1000;
inline constexpr int32_t kMostGpusPerNode = 8;

struct Pod {
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int32_t gpus = 0;       // number of GPUs, 0 to kMostGpusPerNode
  int32_t gpu_milli = 0;  // of each of them; below kMilliPerGpu only when gpus == 1; 0 exactly when gpus == 0
  uint64_t models = 0;    // bit set of admissible GPU models, indices into ModelNames; 0: any
  int64_t total_milli() const { return int64_t{gpus} * gpu_milli; }
};

struct PodNode {
  std::string name;
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int32_t gpus = 0;
  int32_t model = -1;  // index into ModelNames; -1: no GPU
};

// At most 64 names, in the order of their first mention.
struct ModelNames {
  std::vector<std::string> names;
  // -1: a 65th.
  int32_t IndexOf(std::string_view name);
};

bool IsPodTable(const Csv& csv);
// kInvalid with file and line. `models` gets the names that the table adds.
Result<std::vector<Pod>> ReadPods(const Csv& csv, ModelNames* models);
Result<std::vector<PodNode>> ReadPodNodes(const Csv& csv, ModelNames* models);

}  // namespace vrun::sim
