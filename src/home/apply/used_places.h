// SPDX-License-Identifier: Apache-2.0
// Where home's programs have put what a live view's jobs write to. A node goes with what home renames
// (vfs/live/tree/live_moves.h), but what it has told before it hears of that names the old path.
//
// Directories are held by descriptor, and so found under whatever name they have; only those of the root's own file
// system, so that no other is kept from being unmounted. Files are remembered by inode, since a descriptor would hold
// their content when somebody removes them, and looked for in the directory where they were.
//
// Part of LiveApplier. One thread.
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
  static constexpr size_t kMost = 64;  // directories; and four times as many files

  // `path`, in the root, is the directory `fd`, or that file. `root`: the root itself.
  void UseDirectory(const std::string& path, int fd, int root);
  void UseFile(const std::string& path, const struct stat& file);
  // The job has renamed or removed what had that name: nothing is known of it, and of what is below it.
  void Forget(const std::string& path);

  // `path` as it would be now: the last of its directories that is known is elsewhere. Nullopt: none is known, it is
  // where it was, or it is gone.
  std::optional<std::string> DirectoryNow(const std::string& path, int root) const;
  // The name that the file of `path`, whose parent is `directory`, has in it now, if that has another name there by
  // now: `current`, or none.
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
  std::list<std::string> order_;  // paths of directories, the last used one first
  std::unordered_map<std::string, Inode> files_;
};

}  // namespace vrun::home
