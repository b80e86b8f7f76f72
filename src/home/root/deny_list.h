// SPDX-License-Identifier: Apache-2.0
// The paths that home does not serve: private keys, cloud credentials, keyrings, browser profiles, and vrun's own
// state.
//
// Denied below each known home directory (the user's own; /root and all of /home if the daemon is root's): .ssh/id_*
// except *.pub, .ssh/*.pem, .aws, .kube, .config/gcloud, .docker/config.json, keyrings, browser profiles. They are left
// out of the tree, and the patterns are checked again whenever content is served, so a key made after the scan is not
// served either. If one of them is a symlink, its target is denied too.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tree/scan/scan.h"

namespace vrun::home {

// All paths are absolute, clean paths in the root. Immutable; any thread.
class DenyRules {
 public:
  // Whether `path` must not be served, given the granted `exposed` paths. Also true below a denied directory.
  bool Denies(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // Whether something that must not be served is at or below `path` on disk now. Moving such a directory would move it
  // to where no pattern matches.
  bool HidesBelow(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // The names to leave out of a tree (tree::ScanOptions::hidden), given the granted `exposed` paths.
  std::vector<std::string> Hidden(const std::vector<std::string>& exposed = {}) const;

 private:
  friend class DenyList;
  bool DeniedByPattern(std::string_view path, std::string_view* denied) const;
  bool HidesInHome(const std::string& home, std::string_view path, const std::vector<std::string>& exposed) const;
  bool IsThere(const std::string& path, const std::vector<std::string>& exposed) const;

  std::string root_;
  std::vector<std::string> own_;           // vrun's own directories: no --expose opens them
  std::vector<std::string> homes_;         // home directories
  std::vector<std::string> home_parents_;  // every directory in these is a home directory ("/home")
  std::vector<std::string> targets_;       // what denied symlinks point at
  std::vector<std::string> hidden_;        // existing or possible names, without own_
};

class DenyList {
 public:
  struct Options {
    std::string root = "/";
    std::vector<std::string> homes;         // paths in the root
    std::vector<std::string> home_parents;  // {"/home"} for root
    std::vector<std::string> own;           // paths of this machine, in or outside of the root
  };
  explicit DenyList(Options options);

  // Replaces Options::own. False: it was the same.
  bool SetOwn(std::vector<std::string> own);

  // Lists the directories that patterns refer to (.ssh, /home) and resolves symlinks: a few system calls per home
  // directory.
  std::shared_ptr<const DenyRules> Current() const;

  // Whether these changes can affect Current().
  bool Concerns(const tree::DirtySet& dirty) const;

 private:
  Options options_;
};

}  // namespace vrun::home
