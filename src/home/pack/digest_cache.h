// SPDX-License-Identifier: Apache-2.0
// The object ids of file versions, remembered across restarts of home.
//
// On disk: an append-only file of fixed-size records, each with a checksum. A crash or a full disk loses records but
// never makes a wrong one: reading stops at the first corrupt record and the file is truncated there. Bounded: above
// the limit the older half is forgotten. A cache that cannot be written works in memory.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class DigestCache {
 public:
  static constexpr size_t kDefaultLimit = 1u << 19;  // entries; about 64 MiB of memory when full

  // `path`: the file; "": memory only. Never fails: what cannot be read is forgotten, with a log line.
  explicit DigestCache(std::string path, size_t limit = kDefaultLimit);
  ~DigestCache();  // flushes
  DigestCache(const DigestCache&) = delete;
  DigestCache& operator=(const DigestCache&) = delete;

  std::optional<store::ObjectId> Find(const tree::FileVersion& version) const;

  // Remembers the id, unless the file was changed so recently (its ctime against `now_ns`, wall clock) that the next
  // change could still get the same ctime: kernels before 6.13 have timestamps in steps of their tick.
  void Remember(const tree::FileVersion& version, const store::ObjectId& id, int64_t now_ns);

  // Writes the buffer. Call it in idle moments; otherwise the buffer is flushed only by size.
  void Flush();

  size_t size() const;

 private:
  void Load() VRUN_REQUIRES(mutex_);
  void FlushLocked() VRUN_REQUIRES(mutex_);
  void CompactLocked() VRUN_REQUIRES(mutex_);
  void Insert(const tree::FileVersion& version, const store::ObjectId& id) VRUN_REQUIRES(mutex_);

  const std::string path_;
  const size_t limit_;
  mutable Mutex mutex_;
  std::unordered_map<tree::FileVersion, store::ObjectId, tree::FileVersionHash> ids_ VRUN_GUARDED_BY(mutex_);
  std::deque<tree::FileVersion> order_ VRUN_GUARDED_BY(mutex_);  // oldest first
  std::string buffer_ VRUN_GUARDED_BY(mutex_);
  UniqueFd file_ VRUN_GUARDED_BY(mutex_);
  bool failed_ VRUN_GUARDED_BY(mutex_) = false;  // already logged
};

}  // namespace vrun::home
