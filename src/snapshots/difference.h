// SPDX-License-Identifier: Apache-2.0
// The differences between two snapshots that matter to people: changed content, not a changed inode.
#pragma once

#include <functional>

#include "proto/snapshots.pb.h"
#include "snapshots/collection.h"

namespace vrun::snapshots {

// Unordered, except that a directory comes before its content. Ignores times. The cost is proportional to the
// differences.
void Compare(const Collection::Snapshot& from, const Collection::Snapshot& to,
             const std::function<void(v1::SnapshotDifference)>& found);

}  // namespace vrun::snapshots
