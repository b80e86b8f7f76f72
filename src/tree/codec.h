// SPDX-License-Identifier: Apache-2.0
// The encoding of a directory object. Canonical: a directory has exactly one encoding, so its digest is its identity.
//
//   object  = "VRD1" varint(count) entry*                       entries in byte order of their names, no two alike
//   entry   = varint(len) name varint(mode) varint(uid) varint(gid) zigzag(mtime_ns) tail(mode)
//   tail    = directory: digest[32]
//             regular:   varint(size) varint(blocks) zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink)
//             symlink:   varint(len) target zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink)
//             device:    varint(rdev) zigzag(ctime_ns) varint(dev) varint(ino) varint(nlink); FIFO, socket: the same
//             then, all: varint(xattr count) (varint(len) name varint(len) value)*    names ascending
//   Directories carry their ino after the digest: varint(dev) varint(ino).
// Varints are LEB128 in the shortest form; anything longer is refused. Fields that a type's tail does not carry are
// zero (for a symlink, the size is the length of the target). Entry -> bytes -> Entry is the identity only for such
// entries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tree/tree.h"

namespace vrun::tree {

inline constexpr std::string_view kDirectoryMagic = "VRD1";
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr size_t kMaxTargetBytes = 4095;
inline constexpr size_t kMaxXattrs = 4096;                // per file
inline constexpr size_t kMaxXattrValueBytes = 65536;      // the kernel's limit
inline constexpr uint64_t kMaxEncodedBytes = 0xffff0000;  // per directory object: offsets are 32 bits

// A name that Linux allows in a directory: 1..255 bytes, no '/', no NUL, not "." or "..".
bool ValidName(std::string_view name);
// The extended attributes that are part of the tree: user.*, security.capability, system.posix_acl_{access,default}.
bool CarriedXattr(std::string_view name);

// Appends one entry in the format above.
void EncodeEntry(const Entry& entry, std::string* out);
// Parses one entry at the front of *bytes and advances it. kCorrupt. Refuses an empty name: see DecodeRoot.
Result<Entry> DecodeEntry(std::string_view* bytes);

// The root entry as sent with the tree id (AssembleTree): kCorrupt unless its SHA-256 is `id`.
std::string EncodeRoot(const Entry& root);
Result<Entry> DecodeRoot(std::string_view bytes, const Digest& id);

// Content names that accompany a directory object (DirectoryObject.known_ids of proto/content.proto): an encoded
// store::ObjectId for the entry at `index`. (varint(index - previous index - 1) id[33])*, ascending.
inline constexpr size_t kObjectIdBytes = 33;
struct KnownId {
  uint32_t index = 0;
  std::string id;  // kObjectIdBytes long
  bool operator==(const KnownId&) const = default;
};
std::string EncodeKnownIds(const std::vector<KnownId>& ids);
// kCorrupt unless every index is below `entries`.
Result<std::vector<KnownId>> DecodeKnownIds(std::string_view bytes, size_t entries);

}  // namespace vrun::tree
