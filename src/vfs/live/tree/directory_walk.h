// SPDX-License-Identifier: Apache-2.0
// Walks two directory objects in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vfs/content/directory_cache.h"

namespace vrun::vfs {

inline constexpr size_t kNoEntry = SIZE_MAX;

// Calls fn(index in `before` or kNoEntry, index in `after` or kNoEntry) in order of names. `before` may be null.
template <typename Fn>
void WalkBoth(const LoadedDirectory* before, const tree::Directory& after, Fn fn) {
  const size_t had = before != nullptr ? before->directory->size() : 0;
  size_t i = 0, j = 0;
  while (i < had || j < after.size()) {
    int order = 0;
    if (i == had) {
      order = 1;
    } else if (j == after.size()) {
      order = -1;
    } else {
      order = before->directory->NameAt(i).compare(after.NameAt(j));
    }
    fn(order <= 0 ? i : kNoEntry, order >= 0 ? j : kNoEntry);
    if (order <= 0) ++i;
    if (order >= 0) ++j;
  }
}

}  // namespace vrun::vfs
