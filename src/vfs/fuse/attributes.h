// SPDX-License-Identifier: Apache-2.0
// How an entry of the tree looks through a view: stat fields, xattrs, and owners mapped into the tenant's range.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/id_map.h"
#include "tree/tree.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::vfs {

// `root_dev` is the device of the root entry: tree::ShownInode. `fallback_ino` is used if home gave no inode number.
fuse_attr AttributesOf(const tree::Entry& entry, const IdMap& ids, uint64_t root_dev, uint64_t fallback_ino);
uint64_t InodeNumber(const tree::Entry& entry, uint64_t root_dev, uint64_t fallback_ino);

// What a view says of a file's device number. Home's is never served: it would name a device of this node. A device of
// home is shown with its mode and the number 0:1, which no driver has. (0:0 is a deletion to an overlay.)
constexpr uint32_t DeviceNumber(uint32_t mode) { return S_ISCHR(mode) || S_ISBLK(mode) ? 1 : 0; }

// The value for a reader in the tenant's user namespace (which maps the base of `ids` to 0): ids in POSIX ACLs are
// mapped, file capabilities get the root of that namespace. nullopt: no such attribute.
std::optional<std::string> XattrOf(const tree::Entry& entry, std::string_view name, const IdMap& ids);
// Converts a value set by a process in the tenant's namespace to home's form.
std::string HomeXattr(std::string_view name, const std::string& value, const IdMap& ids);
// Names, each with its NUL.
std::string XattrNames(const tree::Entry& entry);

}  // namespace vrun::vfs
