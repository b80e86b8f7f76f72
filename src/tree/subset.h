// SPDX-License-Identifier: Apache-2.0
// Extracts a part of a tree as a tree.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// Keeps only what is at or below `paths` (absolute), and the directories leading there, with their own attributes.
// kNotFound names a path that is not in the tree (symlinks are not followed). Without paths returns `snapshot` itself.
Result<TreePtr> Subset(const TreePtr& snapshot, const std::vector<std::string>& paths);

}  // namespace vrun::tree
