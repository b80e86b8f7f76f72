// SPDX-License-Identifier: Apache-2.0
// Reads and changes a node's attributes and extended attributes for requests. With the tree's lock held.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "base/id_map.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/live/data/live_node.h"

namespace vrun::vfs {

// The time stamp for changes: what a file system gives a file now, so that our times compare with those of the files
// that we keep content in. Any thread.
timespec LiveNow();

// Includes size, blocks and times of content written here.
LiveAttributes CurrentAttributes(const LiveNode& node);

// Changes the permissions, and the node's ACL with them.
void SetMode(LiveNode* node, uint32_t mode);
// Whether it has set-id bits or capabilities, which a write removes.
bool HasPrivileges(LiveNode* node);
// Removes what a write, truncation or change of owner takes away: capabilities, and the set-id bits if `by` may not
// keep them (null: kept). True: something changed that the kernel caches.
bool DropPrivileges(LiveNode* node, const Request* by, const IdMap& ids);

std::string* FindXattr(LiveNode* node, std::string_view name);  // null: none
bool EraseXattr(LiveNode* node, std::string_view name);
// 0 if home can store an extended attribute of this name. Else the errno that the kernel's file systems return for an
// unknown namespace.
int CheckXattrName(std::string_view name);

}  // namespace vrun::vfs
