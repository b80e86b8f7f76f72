// SPDX-License-Identifier: Apache-2.0
// Which host uids a tenant's sandboxes use: 65,536 of their own for every home, the same ones for ever.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"

namespace vrun::node {

inline constexpr uint32_t kUidRangeStart =
    0x40000000;  // far above what distributions hand out (subuid ends at 600100000)
inline constexpr uint32_t kUidRangeSize = 65536;

// Not thread safe. The file is "TENANT BASE" lines; it is written before a new range is used.
class UidRanges {
 public:
  static Result<UidRanges> Load(const std::string& path);
  // The first uid of the range of a tenant (Tenant::Key). kExhausted after 16,384 of them.
  Result<uint32_t> BaseFor(const std::string& tenant);

 private:
  std::string path_;
  std::map<std::string, uint32_t> bases_;
};

}  // namespace vrun::node
