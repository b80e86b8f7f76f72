// SPDX-License-Identifier: Apache-2.0
// Files that home does not serve, whatever they are called. The deny-list knows places; this knows
//  - other hard links of the files in these places, by inode;
//  - private keys and credentials anywhere, by what they contain, if their mode keeps others out (as ssh wants of a
//  key).
//    Keys that everybody may read are taken for examples and test data.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "home/root/tree_table.h"

namespace vrun::home {

// Any thread.
class PrivateFiles {
 public:
  // `trees` has the rules, and what running jobs may see (--expose). Must outlive this.
  explicit PrivateFiles(const TreeTable* trees) : trees_(trees) {}

  // kDenied: the open file must not be served by this path. `st`: of that file.
  Status Check(int fd, const struct stat& st, std::string_view path) const;

 private:
  bool IsOtherName(const struct stat& st, const DenyRules& rules) const;

  const TreeTable* const trees_;
  mutable Mutex mutex_;
  mutable std::vector<FileId> linked_ VRUN_GUARDED_BY(mutex_);
  mutable int64_t looked_us_ VRUN_GUARDED_BY(mutex_) = 0;  // of the wall clock; when `linked_` was begun
};

// Whether the beginning of a file is that of a private key, or has what only credentials have.
bool LooksLikeSecret(std::string_view beginning);

}  // namespace vrun::home
