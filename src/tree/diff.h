// SPDX-License-Identifier: Apache-2.0
// What differs between two trees. Visits only directories whose digests differ, so it costs what changed (and the
// objects of the ancestors), not what is there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tree/tree.h"

namespace vrun::tree {

enum class Change : uint8_t { kAdded, kRemoved, kChanged };

// One name whose bytes in its directory object differ. The pointers live during the call only.
struct Difference {
  Change change;
  std::string_view directory;  // absolute path of the directory, "/" for the root
  std::string_view name;
  const Directory* old_directory = nullptr;  // null when added
  size_t old_index = 0;
  const Directory* new_directory = nullptr;  // null when removed
  size_t new_index = 0;
  // kChanged, both are directories and only what is below differs: their own attributes are the same.
  bool only_below = false;
};

// Gives the Directory of the i-th entry of `parent`, null when it is not at hand (then nothing is said about what is
// below).
using ChildLoader = std::function<DirectoryPtr(const Directory& parent, size_t i)>;

struct DiffOptions {
  // For trees that are not complete (a node's). Default: Directory::Child.
  ChildLoader old_child;
  ChildLoader new_child;
  // Whether an added or removed directory is followed by the names below it.
  bool descend_added = false;
  bool descend_removed = false;
  // True: nothing is said about what differs between these two (either may be null), nor below.
  std::function<bool(const Directory* old_directory, const Directory* new_directory)> skip;
};

// Calls `visit` for each difference, a directory before what is below it. Either side may be null: an empty directory.
void Diff(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory,
          const std::function<void(const Difference&)>& visit, const DiffOptions& options = {});

// A directory object that a holder of `old` needs for `now`.
struct NewDirectory {
  std::string path;
  DirectoryPtr directory;
  DirectoryPtr base;  // what `old` has at this path; null: nothing
};

// Every directory object of `now` (its root's included) that `old` does not have at the same path, parents first, each
// digest once. `old` may be null: all of them. A directory that moved is among them, with what is below it.
std::vector<NewDirectory> NewDirectories(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory);

// Calls `visit` with the index of each entry of `now` that `old` does not have exactly so, ascending, and the index in
// `old` of the entry of that name (its size: none). Nothing is decoded.
void VisitChanged(const Directory& old_directory, const Directory& now,
                  const std::function<void(size_t index, size_t old_index)>& visit);

}  // namespace vrun::tree
