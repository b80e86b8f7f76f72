// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/fragmentation.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace vrun::sim {

FragmentationModel::FragmentationModel(std::span<const Pod> workload, double popularity) {
  using Spec = std::tuple<int64_t, int32_t, int32_t, uint64_t>;  // cpu, milli, gpus, models
  std::map<Spec, int64_t> counts;
  for (const Pod& pod : workload) ++counts[{pod.cpu_milli, pod.gpu_milli, pod.gpus, pod.models}];
  std::vector<std::pair<int64_t, Spec>> by_count;
  for (const auto& [spec, count] : counts) by_count.push_back({count, spec});
  std::sort(by_count.rbegin(), by_count.rend());

  const double wanted = popularity * static_cast<double>(workload.size());
  int64_t total = 0;
  size_t chosen = 0;
  while (chosen < by_count.size() && static_cast<double>(total) < wanted) total += by_count[chosen++].first;
  by_count.resize(chosen);
  // By group, and in it by cpu.
  std::sort(by_count.begin(), by_count.end(), [](const auto& a, const auto& b) {
    const auto& [cpu_a, milli_a, gpus_a, models_a] = a.second;
    const auto& [cpu_b, milli_b, gpus_b, models_b] = b.second;
    return std::tie(milli_a, gpus_a, models_a, cpu_a) < std::tie(milli_b, gpus_b, models_b, cpu_b);
  });
  for (const auto& [count, spec] : by_count) {
    const auto& [cpu, milli, gpus, models] = spec;
    const double p = static_cast<double>(count) / static_cast<double>(total);
    if (gpus == 0) {
      without_gpu_ += p;
      continue;
    }
    if (groups_.empty() || groups_.back().milli != milli || groups_.back().gpus != gpus ||
        groups_.back().models != models) {
      groups_.push_back({gpus, milli, models, {}, {}});
    }
    Group& group = groups_.back();
    const double before = group.up_to.empty() ? 0 : group.up_to.back();
    group.cpus.push_back(cpu);
    group.up_to.push_back(before + p);
  }
}

double FragmentationModel::Of(int32_t model, int64_t cpu_left, std::span<const int32_t> lefts) const {
  int64_t total = 0;
  for (int32_t left : lefts) total += left;
  if (total == 0) return 0;
  double sum = without_gpu_ * static_cast<double>(total);
  for (const Group& group : groups_) {
    const double all = group.up_to.back();
    double can_run = 0;
    int64_t too_small = 0;
    int32_t enough = 0;
    if (group.models == 0 || (model >= 0 && (group.models >> model & 1) != 0)) {
      for (int32_t left : lefts) {
        if (left >= group.milli) {
          ++enough;
        } else {
          too_small += left;
        }
      }
      if (enough >= group.gpus) {
        const auto above = std::upper_bound(group.cpus.begin(), group.cpus.end(), cpu_left);
        if (above != group.cpus.begin()) can_run = group.up_to[above - group.cpus.begin() - 1];
      }
    }
    sum += can_run * static_cast<double>(too_small) + (all - can_run) * static_cast<double>(total);
  }
  return sum;
}

}  // namespace vrun::sim
