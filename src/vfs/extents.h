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

// [first, end) in bytes, ascending. The bytes between them and after the last one are zeros.
using Extents = std::vector<std::pair<uint64_t, uint64_t>>;
constexpr size_t kMaxExtents = 65536;
using ExtentsPtr = std::shared_ptr<const Extents>;

// The result of lseek(2) with `whence` SEEK_DATA or SEEK_HOLE in a file of that size; nullopt: ENXIO. Null extents: the
// whole file is reported as data, which lseek(2) always permits.
std::optional<uint64_t> SeekIn(const Extents* extents, uint64_t size, uint64_t offset, uint32_t whence);

}  // namespace vrun::vfs
