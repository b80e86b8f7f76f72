// SPDX-License-Identifier: Apache-2.0
// Divides one node's disk between its caches: pure arithmetic.
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
  bool active = false;  // read or filled recently
  int64_t used = 0;     // time of the last use; any clock, the same for all
};

// Returns the limit of each cache, so that together they stay within `limit`. Each active cache is guaranteed a fair
// share and may also use what other active caches leave. Inactive caches use what the active ones do not need; the
// least recently used shrink first. While the new limits are being applied, the sum may exceed `limit`.
std::map<std::string, uint64_t> ShareCache(uint64_t limit, const std::vector<CacheHolder>& holders);

}  // namespace vrun::node
