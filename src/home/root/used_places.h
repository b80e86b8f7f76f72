// SPDX-License-Identifier: Apache-2.0
// Finds the files and directories that a live view's jobs write to after programs at home have moved them. A node
// follows home's renames (vfs/live/tree/live_moves.h), but operations that it sent before it knew of a rename have the
// old path.
//
// Directories are held by descriptor and so found under any name. Only those on the root's own file system are held, so
// that others can be unmounted. Files are remembered by inode (a descriptor would keep the content of a removed file)
// and searched in the directory where they were.
//
// Part of ApplyPaths. One thread.
#pragma once

#include <sys/stat.h>

#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/unique_fd.h"

namespace vrun::home {

class UsedPlaces {
 public:
  static constexpr size_t kMost = 64;  // directories; four times as many files

  // Notes that `path`, in the root, is the directory `fd`, or that file. `root`: the root itself.
  void UseDirectory(const std::string& path, int fd, int root);
  void UseFile(const std::string& path, const struct stat& file);
  // The job has renamed or removed `path`: forgets it and everything below it.
  void Forget(const std::string& path);

  // The current path for `path`, if its last known directory has moved. Nullopt: none is known, it has not moved, or it
  // is gone.
  std::optional<std::string> DirectoryNow(const std::string& path, int root) const;
  // The present name, in its open parent `directory`, of the file that was `path`. Nullopt: not known, or `current`
  // (what has the name `path` now) is still that file.
  std::optional<std::string> FileNow(const std::string& path, int directory,
                                     const std::optional<struct stat>& current) const;

 private:
  struct Inode {
    dev_t device = 0;
    ino_t number = 0;
    bool operator==(const Inode&) const = default;
  };
  struct Directory {
    Inode inode;
    UniqueFd fd;  // O_PATH
    std::list<std::string>::iterator place;
  };
  std::unordered_map<std::string, Directory> directories_;
  std::list<std::string> order_;  // paths of directories, most recently used first
  std::unordered_map<std::string, Inode> files_;
};

}  // namespace vrun::home
