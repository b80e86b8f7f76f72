// SPDX-License-Identifier: Apache-2.0
// Old content of files to which only this home has appended: an earlier version is the beginning of the present file.
//
// Why: many jobs append to one file. While home appends for one of them, it takes the tree of the next one. What was
// appended between the tree and its hold (frozen_files.h) would make that version unreadable.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class GrownFiles {
 public:
  static constexpr uint64_t kMostBytes = 16u << 20;  // of a version that is copied
  // We have appended to a file, or changed its metadata. `before`: its state right before; `after`: its state right
  // after, with nothing but our bytes behind the earlier end. Call it with one state twice before the first step: a
  // reader that comes during the step then waits for its end.
  void Grew(const struct stat& before, const struct stat& after);
  // A sealed copy of this version, read from the beginning of the present file. kAborted: unknown, or too large. Blocks
  // for up to 3 s while we append to it.
  Result<UniqueFd> Open(const ContentFiles& root, std::string_view path, const tree::FileVersion& version) const;
  // The descriptor is one of Open's for a version of that size.
  static bool IsCopy(int fd, const tree::FileVersion& version);

 private:
  static constexpr size_t kMostFiles = 4096, kMostVersions = 256;
  using Inode = std::pair<uint64_t, uint64_t>;
  enum class Known {
    kNot,
    kSoon,  // not yet, but it may be a state of an appending that has not ended
    kYes
  };
  // The newest version of the file, if `version` is one of its earlier ones.
  Known Newest(const tree::FileVersion& version, tree::FileVersion* newest) const;

  mutable Mutex mutex_;
  std::map<Inode, std::deque<tree::FileVersion>> versions_
      VRUN_GUARDED_BY(mutex_);  // oldest first, each the beginning of the next
};

}  // namespace vrun::home
