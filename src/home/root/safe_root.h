// SPDX-License-Identifier: Apache-2.0
// A directory as the top of a tree that is changed on behalf of somebody else: no path leads out of it, and no symbolic
// link is followed on the way, even under concurrent changes.
//
// Paths are absolute within the root and of any length.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

// kInvalid unless `path` is absolute and plain: no "." or "..", no empty component, no final slash (except "/"), no NUL
// byte, and of sane length.
Status CheckRootPath(std::string_view path);

std::string_view ParentOf(std::string_view path);
std::string_view NameOf(std::string_view path);
std::string ChildOf(std::string_view directory, std::string_view name);
bool AtOrBelow(std::string_view path, std::string_view prefix);

class SafeRoot {
 public:
  static Result<SafeRoot> Open(const std::string& directory);

  // An O_PATH descriptor of the directory. error_number(): ENOENT; ENOTDIR also for a symbolic link on the way.
  Result<UniqueFd> OpenDirectory(std::string_view path) const;
  int fd() const { return top_.get(); }

 private:
  Result<UniqueFd> Walk(int from, const std::string& relative) const;
  UniqueFd top_;
};

// lstat below an open directory; nullopt if the name does not exist.
Result<std::optional<struct stat>> LstatAt(int directory, const std::string& name);

}  // namespace vrun::home
