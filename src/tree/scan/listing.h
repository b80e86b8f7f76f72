// SPDX-License-Identifier: Apache-2.0
// Opens directories below a root and reads their names. For scan, and for the watcher that walks the same tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::tree {

// openat(2) of a path ("a/b", without "." and "..") of any length that follows no symlink below root_fd. `flags` apply
// to the last component (with O_PATH, O_NOFOLLOW decides). -errno on failure.
int OpenPath(int root_fd, std::string_view path, int flags);

// Opens the directory `path` ("/a/b", in the root) for reading, without following symlinks below root_fd, for a path of
// any length. Keeps atime where the kernel allows it. -errno on failure.
int OpenDirectory(int root_fd, std::string_view path);

// Whether this errno means that this process, not the file system, lacks a resource: then the directory must not be
// treated as empty.
bool OutOfResources(int error_number);

// A temporary name at home while a job's writes are applied (home/apply/apply.h, node/carry/carry.h): .vrun-JOB-NUMBER
// or .vrun-JOB-s-NUMBER. Excluded from every tree.
bool IsUnderWay(std::string_view name);

// The names of one directory, without ".", ".." and temporary names of apply.
class Names {
 public:
  struct Item {
    uint64_t ino;
    uint32_t offset;
    uint8_t type;
  };
  // Returns 0 or errno. Sorts by inode number, the order of inodes on disk.
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
