// SPDX-License-Identifier: Apache-2.0
// A part of a tree, as a tree of its own.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// Only what lies at or below `paths` (absolute), and the directories on the way there, with their own attributes.
// kNotFound names a path that is not in the tree (symlinks are not followed); no paths: `snapshot` itself.
Result<SnapshotPtr> Subset(const SnapshotPtr& snapshot, const std::vector<std::string>& paths);

}  // namespace vrun::tree
