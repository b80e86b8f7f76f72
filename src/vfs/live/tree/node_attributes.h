// SPDX-License-Identifier: Apache-2.0
// A node's attributes and extended attributes, as requests read and change them. With the tree's lock held.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "base/id_map.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/live/data/live_node.h"

namespace vrun::vfs {

// The time that changes are stamped with: the file systems' own coarse clock, so that ours and theirs compare.
timespec LiveNow();

// With size, blocks and times of content that was written here.
LiveAttributes CurrentAttributes(const LiveNode& node);

// Changes the permissions, also in the node's ACL.
void SetMode(LiveNode* node, uint32_t mode);
// It has set-id bits or capabilities, which a write takes away.
bool HasPrivileges(LiveNode* node);
// What a write, truncation or change of owner takes away: capabilities, and the set-id bits if it is `by` somebody who
// may not keep them (null: nobody). True: something that the kernel has cached.
bool DropPrivileges(LiveNode* node, const Request* by, const IdMap& ids);

std::string* FindXattr(LiveNode* node, std::string_view name);  // null: none
bool EraseXattr(LiveNode* node, std::string_view name);
// 0, or the errno of the kernel's file systems for a name that they know nothing of: home could not keep it.
int CheckXattrName(std::string_view name);

}  // namespace vrun::vfs
