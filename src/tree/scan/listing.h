// SPDX-License-Identifier: Apache-2.0
// Opens directories below a root and reads their names: for scan and for the watcher that walks the same tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::tree {

// openat(2) of a path ("a/b", without "." and "..") of any length, without following any symlink below root_fd; `flags`
// say what of the last component (O_PATH: then O_NOFOLLOW decides). -errno on failure.
int OpenPath(int root_fd, std::string_view path, int flags);

// Opens the directory `path` ("/a/b", in the root) for reading without following any symlink below root_fd, whatever
// the length of the path. atime stays as it is where the kernel lets us. -errno on failure.
int OpenDirectory(int root_fd, std::string_view path);

// Whether this errno says that we, not the file system, are out of something: then a directory must not pass as empty.
bool OutOfResources(int error_number);

// A name under which home has something for a moment while a job's writes are applied (home/apply/apply.h,
// node/carry/carry.h): .vrun-JOB-NUMBER or .vrun-JOB-s-NUMBER. No tree has it.
bool IsUnderWay(std::string_view name);

// The names of one directory, without ".", ".." and what is under way.
class Names {
 public:
  struct Item {
    uint64_t ino;
    uint32_t offset;
    uint8_t type;
  };
  // 0 or errno. Sorted by inode number afterwards: on disk that is the order in which their inodes lie.
  int Read(int fd);

  size_t size() const { return items_.size(); }
  const char* at(size_t i) const { return text_.data() + items_[i].offset; }
  uint8_t type(size_t i) const { return items_[i].type; }  // DT_*, may be DT_UNKNOWN
  uint64_t ino(size_t i) const { return items_[i].ino; }

 private:
  std::vector<char> text_;  // NUL-terminated
  std::vector<Item> items_;
};

}  // namespace vrun::tree
