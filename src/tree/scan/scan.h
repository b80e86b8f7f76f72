// SPDX-License-Identifier: Apache-2.0
// Builds and rebuilds the tree from the file system.
//
// What is part of a root: everything below `root` on local file systems, except /proc, /sys, /dev, /run, /tmp (they are
// empty directories in the tree: the job has its own), file systems of the network or of the kernel (their mount points
// are empty directories; mounts.h says which), our own state, and the deny-list. An empty stand-in has mtime 0: what
// happens inside it is not part of the tree.
//
// Scanning opens directories only, by their names, never through a symlink, and does not change their atime where the
// kernel allows that (owner or root). It holds one descriptor a thread, whatever the shape of the tree.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

struct ScanOptions {
  std::string root = "/";  // directory of this machine that becomes "/"
  std::vector<std::string> hollow = {"/proc", "/sys", "/dev", "/run", "/tmp"};  // shown, but empty; paths in the root
  std::vector<std::string> hidden;  // not in the tree at all: our own state, the deny-list; paths in the root
  unsigned threads = 0;             // 0: one per core, at least 2; started only when there is work for them
};

struct ScanStats {
  uint64_t entries = 0;
  uint64_t unreadable_directories = 0;  // shown as empty: the user may not list them
  double seconds = 0;
};

// The file system where `root` itself lies always belongs to the tree.
// A full parallel scan (statx, getdents64, O_NOFOLLOW all the way). Names that vanish meanwhile are left out.
Result<SnapshotPtr> Scan(const ScanOptions& options, ScanStats* stats = nullptr);

// What may have changed since `base`. Absolute paths in the root.
struct DirtySet {
  std::set<std::string> directories;  // their own listing or any of their children's attributes
  std::set<std::string> recursive;    // scanned again with everything below; "/": everything
  // Directory -> the names in it that were made, removed or changed; none: only the attributes of the directory itself.
  // Much cheaper than `directories` when the directory is large.
  std::map<std::string, std::set<std::string>> names;
  // Numbers of files that changed under a name that they have lost: those that are left are found (of whatever device).
  std::set<uint64_t> inodes;
  bool empty() const { return directories.empty() && recursive.empty() && names.empty() && inodes.empty(); }
  bool everything() const { return recursive.contains("/"); }
};

// `base` with the dirty directories read again; everything else is shared with it. New sub-directories are scanned
// whole. When a file with several names changed, its other names are found and read again too. Paths that are gone,
// hidden or below a hollow directory are fine. Cost: the entries of the dirty directories and of their ancestors'
// objects, not the size of the tree.
// `names_changed`, where not null: set if a name has come or gone, was looked for in vain, or is of something else than
// in `base`: of names the result may then be a mixture of two moments. Else it is not touched.
Result<SnapshotPtr> Rescan(const SnapshotPtr& base, const DirtySet& dirty, const ScanOptions& options,
                           bool* names_changed = nullptr);

// One name as the tree would hold it, xattrs and symlink target included (no child digest). `dir_fd` as in fstatat;
// with an empty name dir_fd itself. kNotFound when it is not there.
Result<Entry> ReadEntry(int dir_fd, const std::string& name);

}  // namespace vrun::tree
