// SPDX-License-Identifier: Apache-2.0
// How an entry of the tree looks through a view: stat fields, xattrs, owners moved into the tenant's range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/id_map.h"
#include "tree/tree.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::vfs {

// `root_dev` is the device of the root entry: tree::ShownInode. `fallback_ino` where home gave none.
fuse_attr AttributesOf(const tree::Entry& entry, const IdMap& ids, uint64_t root_dev, uint64_t fallback_ino);
uint64_t InodeNumber(const tree::Entry& entry, uint64_t root_dev, uint64_t fallback_ino);

// The value as a reader in the tenant's user namespace (which maps the base of `ids` to 0) must find it: ids in POSIX
// ACLs are moved, file capabilities get that namespace's root. nullopt: no such attribute.
std::optional<std::string> XattrOf(const tree::Entry& entry, std::string_view name, const IdMap& ids);
// A value that a reader in the tenant's namespace set, as home is to have it.
std::string HomeXattr(std::string_view name, const std::string& value, const IdMap& ids);
// Names, each with its NUL.
std::string XattrNames(const tree::Entry& entry);

}  // namespace vrun::vfs
