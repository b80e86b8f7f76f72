// SPDX-License-Identifier: Apache-2.0
// The units and names of in-memory test contents.
#pragma once

#include <string_view>
#include <vector>

#include "store/format/object_id.h"

namespace vrun::store {

inline std::string_view UnitOf(std::string_view content, uint64_t unit) {
  const uint64_t bytes = UnitBytes(content.size());
  return content.substr(unit * bytes, bytes);
}

inline ObjectId FinalId(std::string_view content) {
  std::vector<Digest> units;
  for (uint64_t u = 0; u < UnitCount(content.size()); ++u) units.push_back(UnitDigest(UnitOf(content, u)));
  return ContentId(content.size(), units);
}

}  // namespace vrun::store
