// SPDX-License-Identifier: Apache-2.0
// Tracks what was written and is not durable yet. Part of Applier.
//
// Flushes either each file and directory that was touched, or their whole file systems, whichever is cheaper: syncfs(2)
// is much cheaper for many small files, but also waits for all dirty data of others on that file system.
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

// Dirty bytes of all file systems of this machine; UINT64_MAX if unknown.
uint64_t BytesNotOnDisk();
// Whether to flush whole file systems with this many dirty bytes instead of `inodes` single inodes.
bool FlushWhole(size_t inodes, uint64_t bytes_not_on_disk);

class ApplyFlush {
 public:
  ApplyFlush();
  // A name in `parent` (O_PATH) was added, removed or changed; `file`: its new content, if any. Takes and closes the
  // descriptor.
  void Touched(int parent, UniqueFd file = UniqueFd());
  // The attributes of this name changed.
  void TouchedAttributes(int parent, const std::string& name);
  // Anything on the file system of `parent`; anything at all.
  void TouchedMuch(int parent);
  void TouchedEverything() { everywhere_ = true; }
  // Blocks for the disk. On error nothing is forgotten.
  Status Flush();

 private:
  using Inode = std::pair<dev_t, ino_t>;
  void Add(int parent, UniqueFd file);
  bool AddDirectory(int directory);
  Status FlushFileSystems();
  Status FlushInodes();

  size_t most_;  // maximum of inodes held open
  std::vector<UniqueFd> files_;
  std::map<Inode, UniqueFd> directories_;  // at least one of each file system
  bool much_ = false;                      // more was touched than is in files_ and directories_
  bool everywhere_ = false;
};

}  // namespace vrun::home
