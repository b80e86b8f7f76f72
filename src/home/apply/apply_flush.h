// SPDX-License-Identifier: Apache-2.0
// What was written and is not durable yet. Part of Applier.
//
// Made durable is either each file and directory that was touched, or their whole file systems, whichever costs less:
// syncfs(2) is cheaper by far for many small files, but waits for all that others have written there and the disk has
// not.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

// Of all file systems of this machine; UINT64_MAX when nobody says.
uint64_t BytesNotOnDisk();
// Whether file systems with so much to be written are flushed as a whole for the sake of `inodes` in them.
bool FlushWhole(size_t inodes, uint64_t bytes_not_on_disk);

class ApplyFlush {
 public:
  ApplyFlush();
  // A name in `parent` (O_PATH) came, went or changed; `file`: its new content, if it has some. It is closed.
  void Touched(int parent, UniqueFd file = UniqueFd());
  // The attributes of what has this name.
  void TouchedAttributes(int parent, const std::string& name);
  // Anything in the file system of `parent`; anything at all.
  void TouchedMuch(int parent);
  void TouchedEverything() { everywhere_ = true; }
  // Blocks for the disk. An error: nothing is forgotten.
  Status Flush();

 private:
  using Inode = std::pair<dev_t, ino_t>;
  void Add(int parent, UniqueFd file);
  bool AddDirectory(int directory);
  Status FlushFileSystems();
  Status FlushInodes();

  size_t most_;  // inodes to be held open
  std::vector<UniqueFd> files_;
  std::map<Inode, UniqueFd> directories_;  // at least one of each file system
  bool much_ = false;                      // more than files_ and directories_
  bool everywhere_ = false;
};

}  // namespace vrun::home
