// SPDX-License-Identifier: Apache-2.0
#include "vfs/extents.h"

#include <unistd.h>

#include <algorithm>

namespace vrun::vfs {

std::optional<uint64_t> SeekIn(const Extents* extents, uint64_t size, uint64_t offset, uint32_t whence) {
  if (offset >= size) return std::nullopt;
  if (extents == nullptr) return whence == SEEK_DATA ? offset : size;
  // The first extent that ends after the offset.
  auto it = std::ranges::upper_bound(*extents, offset, {}, &Extents::value_type::second);
  if (whence == SEEK_DATA) {
    if (it == extents->end() || it->first >= size) return std::nullopt;
    return std::max(offset, it->first);
  }
  while (it != extents->end() && it->first <= offset) offset = (it++)->second;
  return std::min(offset, size);
}

}  // namespace vrun::vfs
