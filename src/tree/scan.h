// SPDX-License-Identifier: Apache-2.0
// Builds and rebuilds the tree from the file system.
//
// What is part of a root: everything below `root` on local file systems, except /proc, /sys, /dev, /run, /tmp (they are
// empty directories in the tree: the job has its own), file systems of the network or of the kernel (their mount points
// are empty directories), our own state, and the deny-list.
#pragma once

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

struct ScanOptions {
  std::string root = "/";                  // directory of this machine that becomes "/"
  std::vector<std::string> hollow = {"/proc", "/sys", "/dev", "/run", "/tmp"};  // shown, but empty; paths in the root
  std::vector<std::string> hidden;         // not in the tree at all: our own state, the deny-list; paths in the root
  unsigned threads = 0;                    // 0: one per core, at least 2
};

struct ScanStats {
  uint64_t entries = 0;
  uint64_t unreadable_directories = 0;     // shown as empty: the user may not list them
  double seconds = 0;
};

// A full parallel scan (statx, getdents64, O_NOFOLLOW all the way). Names that vanish meanwhile are left out.
Result<SnapshotPtr> Scan(const ScanOptions& options, ScanStats* stats = nullptr);

// Directories whose own listing or whose children's attributes may have changed since `base`. Absolute paths in the
// root. A directory in `recursive` is scanned again with everything below it.
struct DirtySet {
  std::set<std::string> directories;
  std::set<std::string> recursive;
  bool empty() const { return directories.empty() && recursive.empty(); }
};

// `base` with the dirty directories read again; everything else is shared with it. New sub-directories are scanned whole.
// Cost: the entries of the dirty directories and of their ancestors' objects, not the size of the tree.
Result<SnapshotPtr> Rescan(const SnapshotPtr& base, const DirtySet& dirty, const ScanOptions& options);

// One name as the tree would hold it, xattrs and symlink target included (no child digest). `dir_fd` as in fstatat.
Result<Entry> ReadEntry(int dir_fd, const std::string& name);

}  // namespace vrun::tree
