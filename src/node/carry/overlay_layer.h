// SPDX-License-Identifier: Apache-2.0
// Reads one layer of an overlay from outside: directories, attributes and the marks of overlayfs.
//
// Paths are absolute within the layer ("/" is its top), of any length. Symbolic links are never followed.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/id_map.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/task.pb.h"

namespace vrun::node {

struct LayerEntry {
  std::string name;
  bool directory = false;
};

std::string JoinPath(std::string_view directory, std::string_view name);
std::string_view ParentPath(std::string_view path);
std::string_view BaseName(std::string_view path);
// Whether `path` is `prefix` or lies below it.
bool IsAtOrBelow(std::string_view path, std::string_view prefix);

class OverlayLayer {
 public:
  // `apart`: "", or a directory with the same names that has the extended attributes missing here.
  static Result<OverlayLayer> Open(const std::string& directory, bool user_xattrs, const std::string& apart = {});

  Result<UniqueFd> OpenDirectory(std::string_view path) const;
  Result<UniqueFd> OpenRegular(std::string_view path) const;
  // nullopt: does not exist (also when a parent is not a directory).
  Result<std::optional<struct stat>> Lstat(std::string_view path) const;
  // Sorted by bytes, so that a series is the same each time.
  Result<std::vector<LayerEntry>> List(std::string_view path) const;
  Result<std::string> ReadLink(std::string_view path) const;
  Result<std::optional<std::string>> Xattr(std::string_view path, const std::string& name) const;

  // Marks of an upper layer.
  Result<std::optional<std::string>> OverlayXattr(std::string_view path, std::string_view suffix) const;
  Result<bool> IsOpaque(std::string_view path) const;    // a directory that hides the lower one
  Result<bool> IsMetacopy(std::string_view path) const;  // a file whose data is still in the lower
  Result<bool> IsWhiteout(std::string_view path, const struct stat& st) const;
  Result<std::optional<std::string>> Redirect(std::string_view path) const;

  // Metadata with home's ids.
  Result<vrun::v1::Meta> ReadMeta(std::string_view path, const struct stat& st, const IdMap& ids) const;

 private:
  // A path that system calls accept: the layer's own path in front, or through a descriptor when that is too long.
  struct Reachable {
    UniqueFd directory;
    std::string path;
  };
  Result<Reachable> Reach(std::string_view path) const;

  std::string top_;
  UniqueFd top_fd_;
  std::unique_ptr<OverlayLayer> apart_;
  std::string prefix_;  // "trusted.overlay." or "user.overlay."
};

// The version that home compares its own file with.
vrun::v1::BaseVersion VersionOf(const struct stat& st);

}  // namespace vrun::node
