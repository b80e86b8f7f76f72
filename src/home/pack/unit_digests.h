// SPDX-License-Identifier: Apache-2.0
// Collects the unit digests of files until they are complete and yield the file's id.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. Bounded: the least recently used file is forgotten first.
class UnitDigests {
 public:
  explicit UnitDigests(size_t max_units = 1u << 20) : max_units_(max_units) {}

  // Adds digests of consecutive units from unit `first` on. Returns the file's id if they complete it; its digests are
  // then forgotten.
  std::optional<store::ObjectId> Add(const tree::FileVersion& version, uint64_t first,
                                     const std::vector<Digest>& digests);

 private:
  struct File {
    std::vector<Digest> digests;  // zero: not known
    uint64_t missing;
    std::list<tree::FileVersion>::iterator used;
  };
  const size_t max_units_;
  Mutex mutex_;
  std::unordered_map<tree::FileVersion, File, tree::FileVersionHash> files_ VRUN_GUARDED_BY(mutex_);
  std::list<tree::FileVersion> used_ VRUN_GUARDED_BY(mutex_);  // most recent first
  size_t units_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::home
