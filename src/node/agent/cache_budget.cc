// SPDX-License-Identifier: Apache-2.0
#include "node/agent/cache_budget.h"

#include <algorithm>

namespace vrun::node {

std::map<std::string, uint64_t> ShareCache(uint64_t limit, const std::vector<CacheHolder>& holders) {
  std::map<std::string, uint64_t> most;
  std::vector<CacheHolder> resting;
  uint64_t active = 0, active_bytes = 0, resting_bytes = 0;
  for (const CacheHolder& h : holders) {
    if (h.active) {
      ++active;
      active_bytes += h.bytes;
    } else {
      resting.push_back(h);
      resting_bytes += h.bytes;
    }
  }
  for (const CacheHolder& h : holders) {
    if (!h.active) continue;
    const uint64_t others = active_bytes - h.bytes;
    most[h.tenant] = std::max(limit / active, limit > others ? limit - others : 0);
  }
  // Leaves the active ones room to grow, so that they need not wait for it.
  const uint64_t taken = active_bytes + (active > 0 ? limit / 16 : 0);
  const uint64_t left = limit > taken ? limit - taken : 0;
  uint64_t excess = resting_bytes > left ? resting_bytes - left : 0;
  std::sort(resting.begin(), resting.end(), [](const CacheHolder& a, const CacheHolder& b) { return a.used < b.used; });
  for (const CacheHolder& h : resting) {
    const uint64_t gives = std::min(excess, h.bytes);
    excess -= gives;
    most[h.tenant] = h.bytes - gives;
  }
  return most;
}

}  // namespace vrun::node
