// SPDX-License-Identifier: Apache-2.0
#include "node/agent/cpu_shares.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace vrun::node {
namespace {

constexpr uint32_t kWhole = 1000;

uint32_t Each(uint32_t milli_cpus, size_t cpus) {
  const auto n = static_cast<uint32_t>(cpus);
  return n == 0 ? 0 : milli_cpus / n + (milli_cpus % n != 0 ? 1 : 0);
}

}  // namespace

CpuShares::CpuShares(const CpuList& cpus) {
  for (uint32_t cpu : cpus) loads_[cpu] = 0;
}

CpuList CpuShares::Give(Key key, uint32_t milli_cpus) {
  if (auto it = shares_.find(key); it != shares_.end()) return it->second.cpus;
  const size_t wanted = milli_cpus / kWhole + (milli_cpus % kWhole != 0 ? 1 : 0);
  if (wanted == 0 || wanted >= loads_.size()) return {};
  const uint32_t each = Each(milli_cpus, wanted);
  // Prefers a processor where it fits, the fullest first; then the least loaded; ties go to the lowest number.
  using Choice = std::tuple<bool, int64_t, uint32_t>;
  std::vector<Choice> choices;
  for (const auto& [cpu, load] : loads_) {
    const bool fits = load + each <= kWhole;
    choices.emplace_back(!fits, fits ? -static_cast<int64_t>(load) : static_cast<int64_t>(load), cpu);
  }
  std::partial_sort(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(wanted), choices.end());
  CpuList cpus;
  for (size_t i = 0; i < wanted; ++i) cpus.push_back(std::get<2>(choices[i]));
  std::sort(cpus.begin(), cpus.end());
  Restore(key, milli_cpus, cpus);
  return cpus;
}

void CpuShares::Restore(Key key, uint32_t milli_cpus, const CpuList& cpus) {
  if (cpus.empty() || shares_.contains(key)) return;
  const Share& share = shares_[key] = {cpus, Each(milli_cpus, cpus.size())};
  for (uint32_t cpu : share.cpus) {
    if (auto it = loads_.find(cpu); it != loads_.end()) it->second += share.milli_each;
  }
}

void CpuShares::Free(Key key) {
  const auto share = shares_.extract(key);
  if (share.empty()) return;
  for (uint32_t cpu : share.mapped().cpus) {
    if (auto it = loads_.find(cpu); it != loads_.end()) it->second -= share.mapped().milli_each;
  }
}

uint64_t CpuShares::LoadOf(uint32_t cpu) const {
  auto it = loads_.find(cpu);
  return it == loads_.end() ? 0 : it->second;
}

}  // namespace vrun::node
