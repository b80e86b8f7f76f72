// SPDX-License-Identifier: Apache-2.0
// A tree with some names as another tree has them: the root as it was, with what a job has written since.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// `base`, in which each of `paths` (absolute, clean) is as in `from`: its attributes and its version there, or gone.
// Nothing else of `from` comes along, with one exception: a directory that `base` has not comes whole. Both are
// complete trees; what did not change is shared with them. kExhausted: a directory object would be too large.
Result<SnapshotPtr> Graft(const SnapshotPtr& base, const Snapshot& from, const std::set<std::string>& paths);

}  // namespace vrun::tree
