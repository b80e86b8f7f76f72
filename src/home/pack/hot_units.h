// SPDX-License-Identifier: Apache-2.0
// Pieces of files as they were sent, with digests, for the next node that asks: sending them again needs no reading,
// hashing or compressing.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/thread/mutex.h"
#include "proto/content.pb.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. Bounded in bytes: the least recently used goes first.
class HotUnits {
 public:
  explicit HotUnits(uint64_t max_bytes = 64u << 20) : max_bytes_(max_bytes) {}

  // Appends the pieces with `count` units from `first` on to *units. False, and nothing appended, if some are missing
  // or were cut differently.
  bool Find(const tree::FileVersion& version, uint64_t first, uint64_t count, v1::Units* units);
  // Stores the compressed pieces; the page cache has the others. Skips a file that was changed so recently (`now_ns`,
  // wall clock) that another change could still get the same ctime.
  void Keep(const tree::FileVersion& version, uint64_t first, const v1::Units& units, int64_t now_ns);
  uint64_t bytes() const;

 private:
  struct Key {
    tree::FileVersion version;
    uint64_t unit;  // the first of the piece
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return tree::FileVersionHash()(k.version) ^ (k.unit * 0x9E3779B97F4A7C15u);
    }
  };
  struct Kept {
    std::shared_ptr<const v1::Piece> piece;
    std::list<Key>::iterator used;
  };
  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::unordered_map<Key, Kept, KeyHash> kept_ VRUN_GUARDED_BY(mutex_);
  std::list<Key> used_ VRUN_GUARDED_BY(mutex_);  // least recently used first
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::home
