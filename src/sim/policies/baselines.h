// SPDX-License-Identifier: Apache-2.0
// The baseline policies for gang jobs, to compare ours with. Oracles know durations; the others see only what a
// scheduler sees. Each policy object serves one replay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "sim/replay/engine.h"

namespace vrun::sim {

struct BaselineInfo {
  std::string_view name;
  std::string_view summary;
  // It preempts, and the published tables to compare with let its running jobs move at no cost
  // (EngineConfig::free_moves).
  bool moves_freely = false;
};

// Names:
// fifo          in order of arrival; the first that does not fit holds up the rest
// greedy        in order of arrival, whatever fits
// easy          fifo; jobs behind a blocked head start if they do not delay it (Lifka's EASY), exact durations
// easy-padded   the same with estimates 1 to 10 times too long (uniform, by a hash of the job)
// sjf, ssf      oracle: shortest duration (GPUs x duration) first, the first that does not fit holds up the rest
// srtf, srsf    oracle: shortest remaining time (GPUs x time) first, preemptive
// las           Tiresias: two queues by attained GPU time, below and above 3.25 GPU-hours, each by arrival, preemptive
// mlfq          levels of attained GPU time, 900 GPU-seconds x 4^k, each by arrival, preemptive
// timeslice     Gandiva-like: round robin in slices of an hour among all jobs, preemptive
// edf           earliest deadline first, jobs without deadline last, whatever fits, no preemption
std::span<const BaselineInfo> Baselines();
// nullptr when unknown.
const BaselineInfo* FindBaseline(std::string_view name);

// kInvalid when unknown.
Result<std::unique_ptr<Policy>> MakeBaseline(std::string_view name);

}  // namespace vrun::sim
