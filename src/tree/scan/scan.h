// SPDX-License-Identifier: Apache-2.0
// Builds and rebuilds the tree from the file system.
//
// A tree contains everything below `root` on local file systems, except: /proc, /sys, /dev, /run, /tmp (empty
// directories in the tree: the job has its own); network and kernel file systems (their mount points are empty
// directories, see mounts.h); our own state; and the deny-list. These empty directories have mtime 0, because changes
// inside them are not part of the tree.
//
// Scanning opens only directories, by name and never through a symlink, and keeps their atime where the kernel allows
// that (owner or root). It holds one descriptor per thread, whatever the shape of the tree.
#pragma once

#include <atomic>
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
  std::vector<std::string> hidden;          // not in the tree: our own state, the deny-list; paths in the root
  unsigned threads = 0;                     // 0: one per core, at least 2; started only when needed
  const std::atomic<bool>* stop = nullptr;  // true: the scan ends soon with kAborted
};

struct ScanStats {
  uint64_t entries = 0;
  uint64_t unreadable_directories = 0;  // shown as empty because the user may not list them
  double seconds = 0;
};

// A full parallel scan (statx, getdents64, O_NOFOLLOW throughout). Always includes the file system of `root` itself.
// Omits names that vanish meanwhile.
Result<TreePtr> Scan(const ScanOptions& options, ScanStats* stats = nullptr);

// Paths that may have changed since `base`, absolute in the root.
struct DirtySet {
  std::set<std::string> directories;  // the listing or any child's attributes may have changed
  std::set<std::string> recursive;    // to be rescanned with everything below; "/": everything
  // Directory -> the names in it that were added, removed or changed; no names: only the directory's own attributes.
  // Much cheaper than `directories` for a large directory.
  std::map<std::string, std::set<std::string>> names;
  // Inode numbers (of any device) of files that changed under a name that is now gone; their remaining names are
  // searched.
  std::set<uint64_t> inodes;
  // Paths to be known: unread directories (tree/unread.h) at and above them are listed. All other paths of this set
  // that are in unread directories stay unread.
  std::set<std::string> wanted;
  bool empty() const {
    return directories.empty() && recursive.empty() && names.empty() && inodes.empty() && wanted.empty();
  }
  bool everything() const { return recursive.contains("/"); }
};

// `base` with the dirty directories reread; everything else is shared with it. New sub-directories are scanned whole.
// When a file with several names changed, its other names are found and reread too. Paths that are gone, hidden or
// below a hollow directory are allowed. The cost depends on the entries of the dirty directories and their ancestors'
// objects, not on the size of the tree. `names_changed`, if not null, is set when a name was added, removed, not found
// or now refers to something else than in `base`: the result's names may then mix two moments. Otherwise it is not
// touched.
Result<TreePtr> Rescan(const TreePtr& base, const DirtySet& dirty, const ScanOptions& options,
                       bool* names_changed = nullptr);

// One name as the tree holds it, including xattrs and symlink target, without child digest. `dir_fd` as in fstatat; an
// empty name means dir_fd itself. kNotFound when it is not there.
Result<Entry> ReadEntry(int dir_fd, const std::string& name);

}  // namespace vrun::tree
