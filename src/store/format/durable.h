// SPDX-License-Identifier: Apache-2.0
// For stores that are not caches: makes stored content survive a power failure. (A cache need not wait for the disk.)
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "store/format/object_id.h"

namespace vrun::store {

// Makes these objects of the store in `directory` durable, and all its blobs. Syncs a few objects one by one, to avoid
// waiting for other writers of the same file system; uses syncfs(2) for many.
Status MakeDurable(const std::string& directory, const std::vector<ObjectId>& objects);
// Makes everything in it durable.
Status MakeAllDurable(const std::string& directory);

}  // namespace vrun::store
