// SPDX-License-Identifier: Apache-2.0
// The paths that home does not serve: private keys, cloud credentials, keyrings, browser profiles, and vrun's own
// state.
//
// Below each known home directory (the user's own; /root and all of /home when the daemon is root's): .ssh/id_* but
// *.pub, .ssh/*.pem, .aws, .kube, .config/gcloud, .docker/config.json, keyrings, browser profiles. They are left out of
// the tree, and looked at again whenever content is served, by pattern: a key made after the scan is not served either.
// Where one of them is a symlink, the place that it points at is denied too.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tree/scan/scan.h"

namespace vrun::home {

// All paths are paths in the root, absolute and clean. Immutable; any thread.
class DenyRules {
 public:
  // Must `path` not be served to somebody to whom `exposed` was granted? Also true below a denied directory.
  bool Denies(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // Is something at or below `path` now, on the disk, that must not be served? Who moves a directory would move it to
  // where no pattern finds it.
  bool HidesBelow(std::string_view path, const std::vector<std::string>& exposed = {}) const;

  // The names to leave out of a tree (tree::ScanOptions::hidden) for which `exposed` was granted.
  std::vector<std::string> Hidden(const std::vector<std::string>& exposed = {}) const;

 private:
  friend class DenyList;
  bool DeniedByPattern(std::string_view path, std::string_view* denied) const;
  bool HidesInHome(const std::string& home, std::string_view path, const std::vector<std::string>& exposed) const;
  bool IsThere(const std::string& path, const std::vector<std::string>& exposed) const;

  std::string root_;
  std::vector<std::string> own_;           // vrun's own directories: no --expose opens them
  std::vector<std::string> homes_;         // home directories
  std::vector<std::string> home_parents_;  // every directory in these is one ("/home")
  std::vector<std::string> targets_;       // what denied symlinks point at
  std::vector<std::string> hidden_;        // existing or possible names, own_ not among them
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

  // Options::own from now on; false: that is what it was.
  bool SetOwn(std::vector<std::string> own);

  // Lists the directories that hold patterns (.ssh, /home) and resolves symlinks: a few system calls a home directory.
  std::shared_ptr<const DenyRules> Current() const;

  // Whether such changes can have changed what Current() says.
  bool Concerns(const tree::DirtySet& dirty) const;

 private:
  Options options_;
};

}  // namespace vrun::home
