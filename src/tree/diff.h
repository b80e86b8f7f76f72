// SPDX-License-Identifier: Apache-2.0
// The differences between two trees. Visits only directories whose digests differ, so the cost depends on the changes
// (and their ancestors' objects), not on the size of the tree.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tree/tree.h"

namespace vrun::tree {

enum class Change : uint8_t { kAdded, kRemoved, kChanged };

// One name whose encoded entry differs. The pointers are valid only during the call.
struct Difference {
  Change change;
  std::string_view directory;  // absolute path of the directory, "/" for the root
  std::string_view name;
  const Directory* old_directory = nullptr;  // null when added
  size_t old_index = 0;
  const Directory* new_directory = nullptr;  // null when removed
  size_t new_index = 0;
  // kChanged where both are directories with equal attributes: only something below differs.
  bool only_below = false;
};

// Returns the Directory of the i-th entry of `parent`; null when it is not available (then nothing below is reported).
using ChildLoader = std::function<DirectoryPtr(const Directory& parent, size_t i)>;

struct DiffOptions {
  // For incomplete trees (on a node). Default: Directory::Child.
  ChildLoader old_child;
  ChildLoader new_child;
  // Whether to report the names below an added or removed directory.
  bool descend_added = false;
  bool descend_removed = false;
  // True: report nothing about the differences between these two (either may be null), nor below.
  std::function<bool(const Directory* old_directory, const Directory* new_directory)> skip;
};

// Calls `visit` for each difference, a directory before its content. Null on either side: an empty directory.
void Diff(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory,
          const std::function<void(const Difference&)>& visit, const DiffOptions& options = {});

// A directory object that a holder of `old` needs for `now`.
struct NewDirectory {
  std::string path;
  DirectoryPtr directory;
  DirectoryPtr base;  // the directory of `old` at this path; null: none
};

// Every directory object of `now` (including its root's) that `old` does not have at the same path, parents first, each
// digest once. `old` may be null: then all of them. Includes a moved directory with everything below it.
std::vector<NewDirectory> NewDirectories(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory);

// Calls `visit`, in ascending order, with the index of each entry of `now` that has no equal entry in `old`, and the
// index in `old` of the entry of that name (`old`'s size if none). Decodes nothing.
void VisitChanged(const Directory& old_directory, const Directory& now,
                  const std::function<void(size_t index, size_t old_index)>& visit);

}  // namespace vrun::tree
