// SPDX-License-Identifier: Apache-2.0
// Combines trees: the root as it was, with some names as another tree has them (a job's writes since).
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// Returns `base` with each of `paths` (absolute, clean) as in `from`: with its attributes and version there, or
// removed. Nothing else of `from` is included, except that a directory missing in `base` is taken whole. Both are
// complete trees; unchanged parts are shared. kExhausted: a directory object would be too large.
Result<TreePtr> Graft(const TreePtr& base, const Tree& from, const std::set<std::string>& paths);

}  // namespace vrun::tree
