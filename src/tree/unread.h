// SPDX-License-Identifier: Apache-2.0
// A directory that home has not read yet (docs/decisions/0046). Its entry has the attributes of the directory and,
// instead of the digest of an object, a digest that no object has. Such a directory has no Child.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tree/tree.h"

namespace vrun::tree {

Digest UnreadDigest(uint64_t dev, uint64_t ino);
bool IsUnread(const Digest& digest);

// The first unread directory at or above `path` (absolute, clean); "": what is at `path` is known.
std::string UnreadAbove(const Tree& snapshot, std::string_view path);
// Any unread directory below `directory`, which is at `path`; "": all is known. May visit every directory.
std::string AnyUnread(const DirectoryPtr& directory, const std::string& path);

}  // namespace vrun::tree
