// SPDX-License-Identifier: Apache-2.0
// Files that jobs of live views are reading. They are held open, so that a file that is removed or replaced at home
// stays readable in the view, as for any local process that has it open. decisions/0021.
//
// Holds the files most recently read in parts. A file that was written in place since (its size or mtime differs) is no
// longer that version and is not handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class LentFiles {
 public:
  static constexpr size_t kMost = 1024;                    // and at most an eighth of our descriptor limit
  static constexpr int64_t kUnusedMicros = 3'600'000'000;  // an unused file is closed, which frees its disk space

  LentFiles();
  // Keeps a duplicate of `fd`, which the caller has just verified to be that version, for live view `view`.
  void Keep(const tree::FileVersion& version, int fd, uint64_t view);
  bool Has(const tree::FileVersion& version) const;
  // kAborted: the file is not held, or its content has changed.
  Result<UniqueFd> Open(const tree::FileVersion& version);
  // OK: what was read from `fd` before this call belongs to that version.
  Status Check(const tree::FileVersion& version, int fd) const;
  // Drops all files of a view that has ended.
  void Drop(uint64_t view);
  // Call periodically. Drops files that were not used for kUnusedMicros.
  void Age(int64_t now_micros);
  size_t size() const;

 private:
  struct Lent {
    tree::FileVersion version;
    UniqueFd fd;
    int64_t mtime_ns = 0;
    int64_t used = 0;   // monotonic
    uint64_t view = 0;  // the view that used it last
  };
  template <typename Goes>
  void DropIf(Goes goes);
  using Place = std::list<Lent>::iterator;

  const size_t most_;
  mutable Mutex mutex_;
  std::list<Lent> files_ VRUN_GUARDED_BY(mutex_);  // most recently used first
  std::unordered_map<tree::FileVersion, Place, tree::FileVersionHash> by_version_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::home
