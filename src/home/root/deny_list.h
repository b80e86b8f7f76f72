// SPDX-License-Identifier: Apache-2.0
// The paths that home does not serve: private keys, tokens and credentials, keyrings, browser profiles, the machine's
// own secrets, and vrun's own state.
//
// Denied below each known home directory (the user's own; /root and all of /home if the daemon is root's): what
// deny_list.cc lists. Denied in /etc: password hashes, host keys and the like. They are left out of the tree, and the
// patterns are checked again whenever content is served, so a key made after the scan is not served either. If one of
// them is a symlink, its target is denied too, and so are the other names that a bind mount gives them. For hard links
// and for keys in other places: home/serve/private_files.h.
//
// Users and administrators add to the list (own_list.h).
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tree/scan/scan.h"

namespace vrun::home {

// What jobs may give files at home.
enum class JobWrites {
  kOwn,    // as kPlain, and only this user's owner
  kPlain,  // no setuid, setgid and file capabilities but those that home has given a file itself
  kAny,    // whatever this user may give them
};

// kDenied: this path is not served to jobs, because it is private.
Error PrivateFile(std::string_view path);
bool IsPrivateFile(const Error& error);

struct FileId {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileId&) const = default;
};

// All paths are absolute, clean paths in the root. Immutable; any thread.
class DenyRules {
 public:
  // Whether `path` must not be served, given the granted `exposed` paths. Also true below a denied directory.
  bool Denies(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // Whether a list of the user's or the administrator's opens `path`.
  bool Opened(std::string_view path) const;

  // The identities of regular files that are denied by path and have other names too (hard links). Walks the denied
  // directories: milliseconds.
  std::vector<FileId> Linked() const;

  // Calls each(path on this machine, its state) for each regular file that is private by its place, other than by a
  // list of the user's or the administrator's, who may change it. Without `directories` only for those that are denied
  // by their own name: some hundred system calls. With them as Linked().
  void ForEachPrivate(bool directories,
                      const std::function<void(const std::string& path, const struct stat& st)>& each) const;

  // Whether something that must not be served is at or below `path` on disk now. Moving such a directory would move it
  // to where no pattern matches.
  bool HidesBelow(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // The hidden names, existing or possible, that a program of this user may ask for: not those in other people's home
  // directories, and none that no --expose shows. At most `most`.
  std::vector<std::string> Missable(size_t most) const;
  // Whether one of them is there now, and this process can read it.
  bool Misses(const std::string& path) const;

  JobWrites writes() const { return writes_; }

  // The names to leave out of a tree (tree::ScanOptions::hidden), given the granted `exposed` paths.
  std::vector<std::string> Hidden(const std::vector<std::string>& exposed = {}) const;

 private:
  friend class DenyList;
  bool DeniedByPattern(std::string_view path, std::string_view* denied) const;
  bool HidesInHome(const std::string& home, std::string_view path, const std::vector<std::string>& exposed) const;
  bool IsThere(const std::string& path, const std::vector<std::string>& exposed) const;

  std::string root_;
  JobWrites writes_ = JobWrites::kPlain;
  std::vector<std::string> own_;           // vrun's own directories, and the administrator's: no --expose opens them
  std::vector<std::string> listed_;        // denied by the user's list, or in /etc
  std::vector<std::string> opened_;        // served all the same, by a list
  std::vector<std::string> homes_;         // home directories
  std::vector<std::string> own_homes_;     // those of homes_ that are this user's
  std::vector<std::string> home_parents_;  // every directory in these is a home directory ("/home")
  std::vector<std::string> targets_;       // what denied symlinks point at
  std::vector<std::string> built_in_;      // those of hidden_ that are in no list
  std::vector<std::string> hidden_;        // existing or possible names, without own_ and what is below opened_
};

class DenyList {
 public:
  struct Options {
    std::string root = "/";
    std::vector<std::string> homes;               // paths in the root
    std::vector<std::string> home_parents;        // {"/home"} for root
    std::vector<std::string> own;                 // paths of this machine, in or outside of the root
    std::string admin_list = "", user_list = "";  // files of this machine (own_list.h); "" or absent: none
    JobWrites writes = JobWrites::kPlain;
  };
  explicit DenyList(Options options);

  // Replaces Options::own. False: it was the same.
  bool SetOwn(std::vector<std::string> own);

  // Lists the directories that patterns refer to (.ssh, /home), resolves symlinks, and reads the mounts and the lists:
  // a few system calls per home directory.
  std::shared_ptr<const DenyRules> Current() const;

  // Whether these changes can affect Current().
  bool Concerns(const tree::DirtySet& dirty) const;

 private:
  Options options_;
};

}  // namespace vrun::home
