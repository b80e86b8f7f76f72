// SPDX-License-Identifier: Apache-2.0
// Preemptive policies: at every instant the jobs of the best ranks run, as many as fit. Preemption is never too
// expensive.
//
// With EngineConfig::free_moves only counts matter. Without it, running jobs stay where they are. A selected job takes
// idle GPUs first, then those of jobs that are not selected. If what is left is too scattered, it takes GPUs of
// selected jobs of worse rank, which start again elsewhere. Nodes whose victims still save their state stay reserved
// for the job that evicted them.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/replay/engine.h"

namespace vrun::sim {

struct RankRule {
  enum class By { kRemaining, kRemainingGpuTime, kAttainedGpuTime, kSlices };
  By by = By::kAttainedGpuTime;
  // kAttainedGpuTime: level 0 ends at `quantum`, level k at quantum x growth^k, in GPU-microseconds; the last of
  // `levels` is unbounded. kSlices: a job's rank is how often it has held its GPUs for `quantum` microseconds.
  int64_t quantum = 0;
  int64_t growth = 4;
  int32_t levels = 30;
};

std::unique_ptr<Policy> MakePreemptivePolicy(const RankRule& rule);

}  // namespace vrun::sim
