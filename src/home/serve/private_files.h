// SPDX-License-Identifier: Apache-2.0
// Files that home does not serve, whatever they are called. The deny-list knows places; this knows
//  - other hard links of the files in these places, by inode;
//  - files that were once in these places and have another name since, by inode and time of birth, across restarts;
//  - private keys and credentials anywhere, by what they contain, if their mode keeps others out (as ssh wants of a
//  key).
//    Keys that everybody may read are taken for examples and test data.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "home/root/tree_table.h"

namespace vrun::home {

// Any thread.
class PrivateFiles {
 public:
  // `trees` has the rules, and what running jobs may see (--expose). Must outlive this. `memory`: a file that keeps
  // what is remembered; "": none.
  explicit PrivateFiles(const TreeTable* trees, std::string memory = "");

  // Remembers the files that are private now, so that a later name of theirs is not served. Looks below directories
  // once a minute at most, and never without `thorough`.
  void Remember(const DenyRules& rules, bool thorough);

  // kDenied: the open file must not be served by this path. `st`: of that file.
  Status Check(int fd, const struct stat& st, std::string_view path) const;

 private:
  // An inode that was private once. With a time of birth the device does not matter, and its number may change.
  struct Past {
    uint64_t device = 0, inode = 0;
    int64_t born_ns = 0;  // negative: the time of its content, because the file system does not tell
  };
  bool IsOtherName(const struct stat& st, const DenyRules& rules) const;
  bool WasPrivate(int fd, const struct stat& st) const;
  bool AddLocked(const Past& past) VRUN_REQUIRES(mutex_);  // true: it was not known
  void Load();
  void Save() const VRUN_REQUIRES(mutex_);

  const std::string memory_;
  const TreeTable* const trees_;
  mutable Mutex mutex_;
  mutable std::vector<FileId> linked_ VRUN_GUARDED_BY(mutex_);
  std::unordered_multimap<uint64_t, Past> past_ VRUN_GUARDED_BY(mutex_);  // by inode
  int64_t walked_us_ VRUN_GUARDED_BY(mutex_) = 0;                         // monotonic; 0: never
  mutable int64_t looked_us_ VRUN_GUARDED_BY(mutex_) = 0;                 // of the wall clock; when `linked_` was begun
};

// Whether the beginning of a file is that of a private key, or has what only credentials have.
bool LooksLikeSecret(std::string_view beginning);

}  // namespace vrun::home
