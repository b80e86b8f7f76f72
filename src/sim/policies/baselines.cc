// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/baselines.h"

#include "base/escape.h"
#include "sim/policies/preemptive_policies.h"
#include "sim/policies/queue_policies.h"
#include "sim/policies/slurm_policy.h"

namespace vrun::sim {
namespace {

using By = RankRule::By;
using Order = QueueOrder;

constexpr int64_t kGpuSecond = kMicrosPerSecond;

constexpr BaselineInfo kBaselines[] = {
    {"fifo", "in order of arrival; the first that does not fit holds up the rest"},
    {"greedy", "in order of arrival, whatever fits"},
    {"easy", "EASY backfill with exact durations"},
    {"easy-padded", "EASY backfill with estimates 1 to 10 times too long"},
    {"slurm", "model of Slurm's backfill, exact wall times (see --slurm)"},
    {"sjf", "oracle: shortest duration first, the first that does not fit holds up the rest"},
    {"ssf", "oracle: least GPU time first, the first that does not fit holds up the rest"},
    {"srtf", "oracle: shortest remaining time first, preemptive", true},
    {"srsf", "oracle: least remaining GPU time first, preemptive", true},
    {"las", "Tiresias: two queues by attained GPU time (3.25 GPU-hours), preemptive", true},
    {"mlfq", "levels of attained GPU time, 900 GPU-seconds x 4^k, preemptive", true},
    {"timeslice", "Gandiva-like round robin in slices of an hour, preemptive", true},
    {"edf", "earliest deadline first, no preemption"},
};

}  // namespace

std::span<const BaselineInfo> Baselines() { return kBaselines; }

const BaselineInfo* FindBaseline(std::string_view name) {
  for (const BaselineInfo& baseline : kBaselines) {
    if (baseline.name == name) return &baseline;
  }
  return nullptr;
}

Result<std::unique_ptr<Policy>> MakeBaseline(std::string_view name) {
  if (name == "fifo") return MakeQueuePolicy(Order::kArrival, true);
  if (name == "greedy") return MakeQueuePolicy(Order::kArrival, false);
  if (name == "easy") return MakeEasyPolicy(1);
  if (name == "easy-padded") return MakeEasyPolicy(10);
  if (name == "slurm") return MakeSlurmPolicy({});
  if (name == "sjf") return MakeQueuePolicy(Order::kDuration, true);
  if (name == "ssf") return MakeQueuePolicy(Order::kGpuTime, true);
  if (name == "edf") return MakeQueuePolicy(Order::kDeadline, false);
  if (name == "srtf") return MakePreemptivePolicy({.by = By::kRemaining});
  if (name == "srsf") return MakePreemptivePolicy({.by = By::kRemainingGpuTime});
  if (name == "las")
    return MakePreemptivePolicy({.by = By::kAttainedGpuTime, .quantum = 11700 * kGpuSecond, .levels = 2});
  if (name == "mlfq") return MakePreemptivePolicy({.by = By::kAttainedGpuTime, .quantum = 900 * kGpuSecond});
  if (name == "timeslice") return MakePreemptivePolicy({.by = By::kSlices, .quantum = 3600 * kMicrosPerSecond});
  return Error(Code::kInvalid, "policy '" + Escape(name) + "': unknown: `vctl sim --policy list` names them");
}

}  // namespace vrun::sim
