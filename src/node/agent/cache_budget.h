// SPDX-License-Identifier: Apache-2.0
// How the caches of one node share its disk: pure arithmetic.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vrun::node {

// The cache of one tenant.
struct CacheHolder {
  std::string tenant;
  uint64_t bytes = 0;
  bool active = false;  // read or filled lately
  int64_t used = 0;     // when it was last; any clock, the same for all
};

// The most that each may hold so that all together come to `limit`. Those that are active have a fair share of it for
// certain, and beyond that what the other active ones leave. The rest hold what the active ones do not need; those that
// were used longest ago give way first. While it is being carried out the sum may be above the limit.
std::map<std::string, uint64_t> ShareCache(uint64_t limit, const std::vector<CacheHolder>& holders);

}  // namespace vrun::node
