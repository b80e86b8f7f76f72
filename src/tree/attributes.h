// SPDX-License-Identifier: Apache-2.0
// lstat, readlink and the xattrs of one name, without opening it, so that it works for any type (FIFO, device).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// Reuses its buffers and remembers the abilities of the kernel and the file systems. One thread at a time.
class AttributeReader {
 public:
  // Fills *entry for `name` in dir_fd ("" is dir_fd itself), reusing its memory. Returns 0 or the errno.
  int Read(int dir_fd, const char* name, Entry* entry);

 private:
  int ReadTarget(int dir_fd, const char* name, Entry* entry);
  int ReadXattrs(int dir_fd, const char* name, Entry* entry);
  ssize_t List(int dir_fd, const char* name);
  ssize_t Get(int dir_fd, const char* name, const char* attribute);

  bool at_calls_ = true;             // the kernel has listxattrat (6.13)
  std::vector<uint64_t> no_xattrs_;  // file systems without any xattrs
  std::vector<char> list_;
  std::vector<char> value_;
  std::string path_;
};

}  // namespace vrun::tree
