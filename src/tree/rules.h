// SPDX-License-Identifier: Apache-2.0
// Which paths of a root are shown empty (hollow) or not at all (hidden). Immutable; any thread.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace vrun::tree {

// Normalizes an absolute path to "/a/b": no doubled or trailing slash, no "."; "/" for the root.
std::string CleanPath(std::string_view path);
// "/a" + "b" = "/a/b", "/" + "b" = "/b".
std::string JoinPath(std::string_view directory, std::string_view name);
// Whether `path` is `ancestor` or lies below it.
bool IsBelow(std::string_view path, std::string_view ancestor);

class PathRules {
 public:
  PathRules(const std::vector<std::string>& hollow, const std::vector<std::string>& hidden);

  bool IsHollow(const std::string& path) const { return hollow_.contains(path); }
  bool IsHidden(std::string_view directory, std::string_view name) const;
  // The hidden names in this directory; null when there are none.
  const std::unordered_set<std::string>* HiddenIn(const std::string& directory) const;
  // Whether this directory is, or lies below, a hollow or hidden one, so that its content is not part of the tree.
  bool Excludes(std::string_view directory) const;

 private:
  std::unordered_set<std::string> hollow_;
  std::unordered_map<std::string, std::unordered_set<std::string>> hidden_;  // directory -> names
  std::vector<std::string> excluded_;                                        // both lists, cleaned
};

}  // namespace vrun::tree
