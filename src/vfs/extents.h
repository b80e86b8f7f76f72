// SPDX-License-Identifier: Apache-2.0
// Where a sparse file has data, for lseek(2) with SEEK_DATA and SEEK_HOLE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace vrun::vfs {

// [first, end) in bytes, ascending; what is between them, and after the last, is zeros.
using Extents = std::vector<std::pair<uint64_t, uint64_t>>;
constexpr size_t kMaxExtents = 65536;
using ExtentsPtr = std::shared_ptr<const Extents>;

// What lseek(2) says of a file of that size with `whence` SEEK_DATA or SEEK_HOLE; nullopt: ENXIO. Null extents: all of
// the file is data, which is always allowed to be said.
std::optional<uint64_t> SeekIn(const Extents* extents, uint64_t size, uint64_t offset, uint32_t whence);

}  // namespace vrun::vfs
