// SPDX-License-Identifier: Apache-2.0
// The mounts below a root, from /proc/self/mountinfo, and which of them belong to the tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"

namespace vrun::tree {

struct Mount {
  std::string point;       // path in the root: "/" for the mount that holds the root itself
  std::string host_point;  // path as seen by this process
  std::string fs_root;     // directory of the file system that is mounted there
  std::string type;        // "ext4", "fuse.sshfs"
  std::string source;
  uint64_t dev = 0;        // st_dev of the file system (btrfs subvolumes have their own)
  bool read_only = false;  // whether the whole file system is, not only this mount
  bool included = false;
  bool operator==(const Mount&) const = default;
};

// Whether this is a local file system, which is part of the tree: a list of types, and everything on a block device.
// Others (network, kernel, fuse.*) are not: a scan must not wait for a server, and they do not report changes.
bool LocalFileSystem(std::string_view type, std::string_view source);

class MountTable {
 public:
  // `mountinfo`: the text of /proc/self/mountinfo; `root`: an absolute path without symlinks. kCorrupt.
  static Result<MountTable> Parse(std::string_view mountinfo, const std::string& root);
  static Result<MountTable> Read(const std::string& root);

  // Visible mounts at or below the root; of several on one mount point, the last. The first is the one at "/".
  const std::vector<Mount>& mounts() const { return mounts_; }
  // Whether this is a mount point whose content is not part of the tree.
  bool Excluded(const std::string& path) const { return excluded_.contains(path); }
  // Names in `directory` that are excluded mount points; null when there are none.
  const std::unordered_set<std::string>* ExcludedIn(const std::string& directory) const;

 private:
  std::vector<Mount> mounts_;
  std::unordered_set<std::string> excluded_;
  std::unordered_map<std::string, std::unordered_set<std::string>> excluded_in_;
};

}  // namespace vrun::tree
