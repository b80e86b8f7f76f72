// SPDX-License-Identifier: Apache-2.0
// What differs between two snapshots, as a person would say it: not that a file has another inode, but that it says
// something else.
#pragma once

#include <functional>

#include "proto/snapshots.pb.h"
#include "snapshots/collection.h"

namespace vrun::snapshots {

// In no order but that a directory comes before what is below it. Times do not count. Costs what differs.
void Compare(const Collection::Snapshot& from, const Collection::Snapshot& to,
             const std::function<void(v1::SnapshotDifference)>& found);

}  // namespace vrun::snapshots
