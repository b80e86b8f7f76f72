// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/attributes.h"

#include <linux/capability.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>

#include <cstring>

#include "tree/inode_number.h"

namespace vrun::vfs {
namespace {

struct Time {
  uint64_t seconds;
  uint32_t nanoseconds;
};

Time Split(int64_t ns) {  // seconds are rounded down before 1970
  int64_t seconds = ns / 1'000'000'000;
  int64_t rest = ns % 1'000'000'000;
  if (rest < 0) {
    rest += 1'000'000'000;
    --seconds;
  }
  return {static_cast<uint64_t>(seconds), static_cast<uint32_t>(rest)};
}

template <typename Shift>
std::string ShiftAcl(std::string value, Shift shift) {
  posix_acl_xattr_header header;
  if (value.size() < sizeof header || (value.size() - sizeof header) % sizeof(posix_acl_xattr_entry) != 0) return value;
  for (size_t at = sizeof header; at < value.size(); at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry entry;  // little-endian on disk, as are the machines that this runs on
    std::memcpy(&entry, value.data() + at, sizeof entry);
    if (entry.e_tag == ACL_USER || entry.e_tag == ACL_GROUP) entry.e_id = shift(entry.e_id);
    std::memcpy(value.data() + at, &entry, sizeof entry);
  }
  return value;
}

// Version 2 capabilities count only for the root of the mount's namespace, which is the host's. Version 3 names the
// root for which they count.
std::string ShiftCapability(std::string value, uint32_t uid_base) {
  vfs_cap_data v2;
  if (value.size() != XATTR_CAPS_SZ_2 || uid_base == 0) return value;
  std::memcpy(&v2, value.data(), sizeof v2);
  if ((v2.magic_etc & VFS_CAP_REVISION_MASK) != VFS_CAP_REVISION_2) return value;
  vfs_ns_cap_data v3{};
  v3.magic_etc = VFS_CAP_REVISION_3 | (v2.magic_etc & VFS_CAP_FLAGS_MASK);
  std::memcpy(v3.data, v2.data, sizeof v2.data);
  v3.rootid = uid_base;
  return {reinterpret_cast<const char*>(&v3), sizeof v3};
}

// The reverse of ShiftCapability. A capability of another root is home's own and is passed on.
std::string HomeCapability(const std::string& value, uint32_t uid_base) {
  vfs_ns_cap_data v3;
  if (value.size() != sizeof v3) return value;
  std::memcpy(&v3, value.data(), sizeof v3);
  if ((v3.magic_etc & VFS_CAP_REVISION_MASK) != VFS_CAP_REVISION_3 || v3.rootid != uid_base) return value;
  vfs_cap_data v2{};
  v2.magic_etc = VFS_CAP_REVISION_2 | (v3.magic_etc & VFS_CAP_FLAGS_MASK);
  std::memcpy(v2.data, v3.data, sizeof v2.data);
  return {reinterpret_cast<const char*>(&v2), sizeof v2};
}

bool IsAcl(std::string_view name) { return name == "system.posix_acl_access" || name == "system.posix_acl_default"; }

}  // namespace

uint64_t InodeNumber(const tree::Entry& entry, uint64_t root_dev, uint64_t fallback_ino) {
  if (entry.ino == 0) return fallback_ino | 1ull << 60;
  return tree::ShownInode(entry.dev, entry.ino, root_dev);
}

fuse_attr AttributesOf(const tree::Entry& entry, const IdMap& ids, uint64_t root_dev, uint64_t fallback_ino) {
  fuse_attr attr{};
  attr.ino = InodeNumber(entry, root_dev, fallback_ino);
  const Time mtime = Split(entry.mtime_ns);
  // The tree has no ctime for directories. It has no access times either: a read-only mount has none of its own.
  const Time ctime = entry.is_directory() ? mtime : Split(entry.ctime_ns);
  attr.mtime = attr.atime = mtime.seconds;
  attr.mtimensec = attr.atimensec = mtime.nanoseconds;
  attr.ctime = ctime.seconds;
  attr.ctimensec = ctime.nanoseconds;
  attr.mode = entry.mode;
  attr.uid = ids.ToNode(entry.uid);
  attr.gid = ids.ToNode(entry.gid);
  attr.blksize = 4096;
  if (entry.is_directory()) {
    attr.size = 4096;
    attr.blocks = 8;
    attr.nlink = 1;  // "unknown", as on btrfs: find and fts do not rely on it
  } else {
    attr.size = entry.size;
    attr.blocks = entry.blocks;
    attr.nlink = entry.nlink == 0 ? 1 : entry.nlink;
    attr.rdev = DeviceNumber(entry.mode);
  }
  return attr;
}

std::optional<std::string> XattrOf(const tree::Entry& entry, std::string_view name, const IdMap& ids) {
  for (const auto& [key, value] : entry.xattrs) {
    if (key != name) continue;
    if (IsAcl(name)) return ShiftAcl(value, [&](uint32_t id) { return ids.ToNode(id); });
    if (name == "security.capability") return ShiftCapability(value, ids.base());
    return value;
  }
  return std::nullopt;
}

std::string HomeXattr(std::string_view name, const std::string& value, const IdMap& ids) {
  if (IsAcl(name)) return ShiftAcl(value, [&](uint32_t id) { return ids.ToHome(id); });
  return name == "security.capability" ? HomeCapability(value, ids.base()) : value;
}

std::string XattrNames(const tree::Entry& entry) {
  std::string names;
  for (const auto& [key, value] : entry.xattrs) {
    names += key;
    names += '\0';
  }
  return names;
}

}  // namespace vrun::vfs
