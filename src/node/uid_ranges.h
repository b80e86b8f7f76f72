// SPDX-License-Identifier: Apache-2.0
// Assigns host uids to tenants' sandboxes: a permanent range of 65,536 for each tenant, and one more for each id above
// 65535 that its user has (base/id_map.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/id_map.h"
#include "base/result.h"

namespace vrun::node {

inline constexpr uint32_t kUidRangeStart =
    0x40000000;  // far above what distributions assign (subuid ends at 600100000)
inline constexpr uint32_t kUidRangeSize = IdMap::kIds;

// Not thread safe. The file has lines "TENANT BASE [ID]..."; it is written before a new range or id is used.
class UidRanges {
 public:
  struct Range {
    uint32_t base = 0;
    std::vector<uint32_t> high;  // home's ids above 65535; entries never move
  };

  static Result<UidRanges> Load(const std::string& path);
  // The range of a tenant (Tenant::Key), extended with each of these home ids above 65535. kExhausted after 16,384
  // tenants, or when the tenant has too many such ids.
  Result<Range> RangeFor(const std::string& tenant, const std::vector<uint32_t>& ids = {});
  // nullptr: none yet.
  const Range* Find(const std::string& tenant) const;

 private:
  std::string path_;
  std::map<std::string, Range> ranges_;
};

}  // namespace vrun::node
