// SPDX-License-Identifier: Apache-2.0
// The bytes of a directory object. Canonical: one directory has exactly one encoding, so its digest is its identity.
//
//   object  = "VRD1" varint(count) entry*                       entries in byte order of their names, no two alike
//   entry   = varint(len) name varint(mode) varint(uid) varint(gid) zigzag(mtime_ns) tail(mode)
//   tail    = directory: digest[32]
//             regular:   varint(size) varint(blocks) zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink)
//             symlink:   varint(len) target zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink)
//             device:    varint(rdev) zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink); FIFO, socket: the same
//             then, all: varint(xattr count) (varint(len) name varint(len) value)*    names ascending
//   Directories carry their ino after the digest: varint(dev) varint(ino).
// Varints are LEB128, shortest form; anything longer is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

// Appends one entry as above.
void EncodeEntry(const Entry& entry, std::string* out);
// Parses one entry at the front of *bytes and advances it. kCorrupt.
Result<Entry> DecodeEntry(std::string_view* bytes);

// The root entry as it travels beside the tree id (MakeSnapshot): kCorrupt unless its SHA-256 is `id`.
std::string EncodeRoot(const Entry& root);
Result<Entry> DecodeRoot(std::string_view bytes, const Digest& id);

}  // namespace vrun::tree
