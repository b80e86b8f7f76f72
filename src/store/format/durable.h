// SPDX-License-Identifier: Apache-2.0
// For stores that are no cache: what was put survives a power failure. (A cache need not wait for the disk.)
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "store/format/object_id.h"

namespace vrun::store {

// Makes these objects of the store in `directory` durable, and all of its blobs. A few are synced one by one, so that
// what others write to the same file system is not waited for; many at once by syncfs(2).
Status MakeDurable(const std::string& directory, const std::vector<ObjectId>& objects);
// Everything in it.
Status MakeAllDurable(const std::string& directory);

}  // namespace vrun::store
