// SPDX-License-Identifier: Apache-2.0
// Preemptive policies: at every instant the jobs of the best ranks run, as many as fit, and no preemption is too dear.
//
// With EngineConfig::free_moves only counts matter. Without, running jobs stay where they are: who is to run takes idle
// GPUs first, then those of jobs that are not to run, then, when what is left lies scattered, those of jobs of worse
// rank that are; these start again elsewhere. Nodes whose victims still save their state are kept for whom they were
// taken.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/replay/engine.h"

namespace vrun::sim {

struct RankRule {
  enum class By { kRemaining, kRemainingGpuTime, kAttainedGpuTime, kSlices };
  By by = By::kAttainedGpuTime;
  // kAttainedGpuTime: level 0 ends at `quantum`, level k at quantum x growth^k, in GPU-microseconds; the last of
  // `levels` has no end. kSlices: a job's rank is the number of times it has held its GPUs for `quantum` microseconds.
  int64_t quantum = 0;
  int64_t growth = 4;
  int32_t levels = 30;
};

std::unique_ptr<Policy> MakePreemptivePolicy(const RankRule& rule);

}  // namespace vrun::sim
