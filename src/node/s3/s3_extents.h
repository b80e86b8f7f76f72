// SPDX-License-Identifier: Apache-2.0
// How content is divided into the objects of an S3 store (src/s3/extent.h): a file of up to 1 MiB is one object, a
// larger file has one per aligned 4 MiB.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "store/format/object_id.h"

namespace vrun::node {

inline constexpr uint64_t kExtentBytes = 4u << 20;

// One file's content, by name. Never a provisional name, which is valid at one home only.
struct NamedContent {
  store::ObjectId id;
  uint64_t size = 0;
  bool operator==(const NamedContent&) const = default;

  uint64_t units_per_extent() const { return kExtentBytes / store::UnitBytes(size); }
  uint64_t extents() const { return (size + kExtentBytes - 1) / kExtentBytes; }
  // The number of units in extent `index`.
  uint64_t UnitsOf(uint64_t index) const {
    return std::min(units_per_extent(), store::UnitCount(size) - index * units_per_extent());
  }
  uint64_t LengthOfUnit(uint64_t unit) const {
    return std::min(store::UnitBytes(size), size - unit * store::UnitBytes(size));
  }
  // The object's name, from which the controller computes the key. Only the controller is told the name.
  std::string NameOf(uint64_t index) const {
    std::string name = id.Encode();
    for (const uint64_t n : {size, index}) {
      for (int i = 0; i < 8; ++i) name.push_back(static_cast<char>(n >> (8 * i)));
    }
    return name;
  }
};

}  // namespace vrun::node
