// SPDX-License-Identifier: Apache-2.0
#include "tree/attributes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "tree/codec.h"

namespace vrun::tree {
namespace {

// Added in Linux 6.13; the build host's libc does not define them yet. The same numbers on all architectures.
constexpr long kGetxattrat = 464;
constexpr long kListxattrat = 465;
struct XattrArgs {
  alignas(8) uint64_t value;
  uint32_t size;
  uint32_t flags;
};

int64_t Nanos(const struct statx_timestamp& t) { return ToNanos(t.tv_sec, t.tv_nsec); }

// On ext4 few files have xattrs, and the inode alone answers "none": start with a small buffer and grow it if needed.
constexpr size_t kFirstBuffer = 4096;

}  // namespace

int AttributeReader::Read(int dir_fd, const char* name, Entry* entry) {
  struct statx st;
  const int flags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | (*name == '\0' ? AT_EMPTY_PATH : 0);
  if (::statx(dir_fd, name, flags, STATX_BASIC_STATS, &st) != 0) return errno;
  entry->name = name;
  entry->mode = st.stx_mode;
  entry->uid = st.stx_uid;
  entry->gid = st.stx_gid;
  entry->size = 0;
  entry->blocks = 0;
  entry->mtime_ns = Nanos(st.stx_mtime);
  entry->ctime_ns = 0;
  entry->dev = makedev(st.stx_dev_major, st.stx_dev_minor);
  entry->ino = st.stx_ino;
  entry->nlink = 0;
  entry->rdev = 0;
  entry->target.clear();
  entry->xattrs.clear();
  entry->child = {};
  if (!S_ISDIR(st.stx_mode)) {
    entry->ctime_ns = Nanos(st.stx_ctime);
    entry->nlink = st.stx_nlink;
  }
  if (S_ISREG(st.stx_mode)) {
    entry->size = st.stx_size;
    entry->blocks = st.stx_blocks;
  } else if (S_ISCHR(st.stx_mode) || S_ISBLK(st.stx_mode)) {
    entry->rdev = makedev(st.stx_rdev_major, st.stx_rdev_minor);
  } else if (S_ISLNK(st.stx_mode)) {
    if (int e = ReadTarget(dir_fd, name, entry); e != 0) return e;
  }
  return ReadXattrs(dir_fd, name, entry);
}

int AttributeReader::ReadTarget(int dir_fd, const char* name, Entry* entry) {
  char target[kMaxTargetBytes + 1];
  const ssize_t n = ::readlinkat(dir_fd, name, target, sizeof target);
  if (n < 0) return errno;
  if (n == 0) return ENOENT;
  entry->target.assign(target, std::min(static_cast<size_t>(n), kMaxTargetBytes));
  entry->size = entry->target.size();
  return 0;
}

ssize_t AttributeReader::List(int dir_fd, const char* name) {
  if (at_calls_) {
    const int flags = AT_SYMLINK_NOFOLLOW | (*name == '\0' ? AT_EMPTY_PATH : 0);
    const long n = ::syscall(kListxattrat, dir_fd, name, flags, list_.data(), list_.size());
    if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n;
    at_calls_ = false;  // an older kernel, or a seccomp filter that rejects the call
  }
  // A path through our own descriptor: the only way that neither follows the link nor opens the file.
  if (*name == '\0') return ::flistxattr(dir_fd, list_.data(), list_.size());
  path_ = "/proc/self/fd/" + std::to_string(dir_fd) + "/" + name;
  return ::llistxattr(path_.c_str(), list_.data(), list_.size());
}

ssize_t AttributeReader::Get(int dir_fd, const char* name, const char* attribute) {
  if (at_calls_) {
    const int flags = AT_SYMLINK_NOFOLLOW | (*name == '\0' ? AT_EMPTY_PATH : 0);
    XattrArgs args{reinterpret_cast<uint64_t>(value_.data()), static_cast<uint32_t>(value_.size()), 0};
    return ::syscall(kGetxattrat, dir_fd, name, flags, attribute, &args, sizeof args);
  }
  if (*name == '\0') return ::fgetxattr(dir_fd, attribute, value_.data(), value_.size());
  return ::lgetxattr(path_.c_str(), attribute, value_.data(), value_.size());
}

int AttributeReader::ReadXattrs(int dir_fd, const char* name, Entry* entry) {
  if (std::find(no_xattrs_.begin(), no_xattrs_.end(), entry->dev) != no_xattrs_.end()) return 0;
  if (list_.empty()) list_.resize(kFirstBuffer);
  ssize_t n = List(dir_fd, name);
  if (n < 0 && errno == ERANGE) {
    list_.resize(65536);
    n = List(dir_fd, name);
  }
  if (n < 0) {
    if (errno == EOPNOTSUPP && (entry->is_regular() || entry->is_directory())) no_xattrs_.push_back(entry->dev);
    // For other errors: a name without its xattrs is better than no name. ENOENT means that it is gone.
    return errno == ENOENT ? ENOENT : 0;
  }
  for (const char *at = list_.data(), *end = at + n; at < end; at += std::strlen(at) + 1) {
    if (!CarriedXattr(at) || entry->xattrs.size() == kMaxXattrs) continue;
    if (value_.empty()) value_.resize(kMaxXattrValueBytes);
    const ssize_t size = Get(dir_fd, name, at);
    if (size >= 0) entry->xattrs.emplace_back(at, std::string(value_.data(), static_cast<size_t>(size)));
  }
  std::sort(entry->xattrs.begin(), entry->xattrs.end());
  return 0;
}

}  // namespace vrun::tree
