// SPDX-License-Identifier: Apache-2.0
// Files that jobs of live views are reading, held open: what is removed or replaced here is still read there, as by any
// process that has it open. decisions/0021.
//
// Held are files of which a part was asked for, the last ones. A file that was written in place is not what it was, and
// is not given out: size and time of its content tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class LentFiles {
 public:
  static constexpr size_t kMost = 1024;                    // and an eighth of the descriptors that we may have
  static constexpr int64_t kUnusedMicros = 3'600'000'000;  // a file that nobody asks for gives its disk space back

  LentFiles();
  // `fd` has just been seen to be that version. Holds a descriptor of its own, for live view `view`.
  void Keep(const tree::FileVersion& version, int fd, uint64_t view);
  bool Has(const tree::FileVersion& version) const;
  // kAborted: it is not held, or its content has changed.
  Result<UniqueFd> Open(const tree::FileVersion& version);
  // What was read of it before this is of that version.
  Status Check(const tree::FileVersion& version, int fd) const;
  // The view is no more.
  void Drop(uint64_t view);
  // To be called now and then: drops what nobody has asked for in kUnusedMicros.
  void Age(int64_t now_micros);
  size_t size() const;

 private:
  struct Lent {
    tree::FileVersion version;
    UniqueFd fd;
    int64_t mtime_ns = 0;
    int64_t used = 0;   // monotonic
    uint64_t view = 0;  // that asked for it last
  };
  template <typename Goes>
  void DropIf(Goes goes);
  using Place = std::list<Lent>::iterator;

  const size_t most_;
  mutable std::mutex mutex_;
  std::list<Lent> files_;  // the last used one first
  std::unordered_map<tree::FileVersion, Place, tree::FileVersionHash> by_version_;
};

}  // namespace vrun::home
