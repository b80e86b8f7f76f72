// SPDX-License-Identifier: Apache-2.0
#include "control/gpus/gpu_use.h"

#include <algorithm>

namespace vrun::control {

bool AddUse(const std::vector<PodRow>& pods, v1::GpuUsage* sum) {
  uint64_t peak = 0, memory = 0, percent = 0, known = 0;
  for (const PodRow& pod : pods) {
    v1::GpuUsage use;
    if (pod.usage.empty() || !use.ParseFromString(pod.usage)) continue;
    ++known;
    sum->set_job(use.job());
    sum->set_attempt(use.attempt());
    sum->set_metered_us(sum->metered_us() + use.metered_us());
    sum->set_busy_us(sum->busy_us() + use.busy_us());
    if (use.has_sm_us()) sum->set_sm_us(sum->sm_us() + use.sm_us());
    sum->set_energy_mj(sum->energy_mj() + use.energy_mj());
    peak += use.memory_peak_bytes();
    memory += use.memory_bytes();
    percent += use.utilization_percent();
  }
  if (known == 0) return false;
  sum->set_memory_peak_bytes(std::max(sum->memory_peak_bytes(), peak));
  sum->set_memory_bytes(memory);
  sum->set_utilization_percent(static_cast<uint32_t>(percent / known));
  return true;
}

}  // namespace vrun::control
