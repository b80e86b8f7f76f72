// SPDX-License-Identifier: Apache-2.0
// What home knows of the contents of its files: the object id of a file's version, remembered over restarts.
//
// On disk: an append-only file of fixed records, each with a checksum. A crash or a full disk loses records, never
// makes a wrong one: reading stops at the first record that does not check and the file is cut there. Bounded: when the
// limit is passed the older half is forgotten. A cache that cannot be written works on in memory.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "base/unique_fd.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class DigestCache {
 public:
  static constexpr size_t kDefaultLimit = 1u << 19;  // entries; about 64 MiB of memory when full

  // `path`: the file; "" keeps everything in memory. Never fails: what cannot be read is forgotten, with a log line.
  explicit DigestCache(std::string path, size_t limit = kDefaultLimit);
  ~DigestCache();  // flushes
  DigestCache(const DigestCache&) = delete;
  DigestCache& operator=(const DigestCache&) = delete;

  std::optional<store::ObjectId> Find(const tree::FileVersion& version) const;

  // Remembers it, unless the file was changed so recently (by its ctime against `now_ns`, wall clock) that the next
  // change could still get the same ctime: kernels before 6.13 stamp in steps of their tick.
  void Remember(const tree::FileVersion& version, const store::ObjectId& id, int64_t now_ns);

  // Writes what is buffered. Called by whoever has a quiet moment; small files are flushed by size alone otherwise.
  void Flush();

  size_t size() const;

 private:
  void Load();
  void FlushLocked();
  void CompactLocked();
  void Insert(const tree::FileVersion& version, const store::ObjectId& id);

  const std::string path_;
  const size_t limit_;
  mutable std::mutex mutex_;
  std::unordered_map<tree::FileVersion, store::ObjectId, tree::FileVersionHash>
      ids_;                              // guarded by mutex_, as all below
  std::deque<tree::FileVersion> order_;  // oldest first
  std::string buffer_;
  UniqueFd file_;
  bool failed_ = false;  // said so already
};

}  // namespace vrun::home
