// SPDX-License-Identifier: Apache-2.0
#include "home/root/file_meta.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/id_map.h"

namespace vrun::home {
namespace {

constexpr size_t kMaxNames = 65536;
constexpr size_t kMaxValue = 65536;

bool Carried(const std::string& name) {
  return name.starts_with("user.") || name == "system.posix_acl_access" || name == "system.posix_acl_default" ||
         name == "security.capability";
}

// The only way to access the attributes of an O_PATH descriptor.
std::string ByDescriptor(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

std::vector<std::string> CarriedNames(const std::string& path) {
  char small[1024];
  std::string large;
  const char* names = small;
  ssize_t n = ::listxattr(path.c_str(), small, sizeof small);
  if (n < 0 && errno == ERANGE) {
    large.resize(kMaxNames);
    n = ::listxattr(path.c_str(), large.data(), large.size());
    names = large.data();
  }
  std::vector<std::string> out;
  for (size_t i = 0; n > 0 && i < static_cast<size_t>(n);) {
    std::string name = names + i;
    i += name.size() + 1;
    if (Carried(name)) out.push_back(std::move(name));
  }
  return out;
}

void SetXattrs(const std::string& path, const vrun::v1::Meta& meta, std::string* left_out) {
  // A default ACL of the parent, or an older version of the file, may have left attributes that the job's file does not
  // have.
  for (const std::string& name : CarriedNames(path)) {
    bool wanted = false;
    for (const auto& xattr : meta.xattrs()) wanted = wanted || xattr.name() == name;
    if (!wanted) ::removexattr(path.c_str(), name.c_str());
  }
  for (const auto& xattr : meta.xattrs()) {
    if (!Carried(xattr.name()) || xattr.name().find('\0') != std::string::npos) continue;
    if (::setxattr(path.c_str(), xattr.name().c_str(), xattr.value().data(), xattr.value().size(), 0) != 0) {
      if (!left_out->empty()) *left_out += ", ";
      *left_out += Escape(xattr.name()) + " (" + std::strerror(errno) + ")";
    }
  }
}

struct timespec ToTimespec(int64_t ns) {
  int64_t seconds = ns / 1'000'000'000;
  int64_t rest = ns % 1'000'000'000;
  if (rest < 0) {
    rest += 1'000'000'000;
    --seconds;
  }
  return {.tv_sec = seconds, .tv_nsec = rest};
}

}  // namespace

Status SetFileMeta(int fd, const vrun::v1::Meta& meta, MetaFor use, std::string* left_out) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("read its attributes");
  std::string path = ByDescriptor(fd);

  // Order matters: changing the owner drops capabilities and setuid; setting user.* attributes needs write permission,
  // which the final mode may not give.
  uid_t uid = ::geteuid() == 0 ? meta.uid() : st.st_uid;
  gid_t gid = meta.gid();
  bool owned = st.st_uid == meta.uid();
  bool grouped = st.st_gid == meta.gid();
  if (uid != st.st_uid || gid != st.st_gid) {
    bool done = ::fchownat(fd, "", uid, gid, AT_EMPTY_PATH) == 0;
    owned = owned || (done && uid == meta.uid());
    grouped = grouped || done;
  }
  bool link = S_ISLNK(st.st_mode);
  if (!link) {
    SetXattrs(path, meta, left_out);
    mode_t mode = meta.mode() & 07777;
    if (!owned) mode &= ~static_cast<mode_t>(S_ISUID);
    if (!grouped && !S_ISDIR(st.st_mode)) mode &= ~static_cast<mode_t>(S_ISGID);
    if (use == MetaFor::kOpenDirectory) mode |= 0700;
    struct stat now;
    if (::fstat(fd, &now) != 0 || (now.st_mode & 07777) != mode) {
      if (::chmod(path.c_str(), mode) != 0) return ErrnoError("set its mode");
    }
  }
  struct timespec times[2] = {ToTimespec(meta.atime_ns()), ToTimespec(meta.mtime_ns())};
  // The magic link leads to the object itself, even if that is a symbolic link.
  if (::utimensat(AT_FDCWD, path.c_str(), times, 0) != 0) return ErrnoError("set its times");
  return {};
}

vrun::v1::Meta KeepOwners(vrun::v1::Meta meta, const std::optional<struct stat>& before) {
  if (before && meta.uid() == IdMap::kNobody && before->st_uid >= IdMap::kIds) meta.set_uid(before->st_uid);
  if (before && meta.gid() == IdMap::kNobody && before->st_gid >= IdMap::kIds) meta.set_gid(before->st_gid);
  return meta;
}

Result<vrun::v1::Meta> GetFileMeta(int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("read its attributes");
  vrun::v1::Meta meta;
  meta.set_mode(st.st_mode);
  meta.set_uid(st.st_uid);
  meta.set_gid(st.st_gid);
  meta.set_mtime_ns(ToNanos(st.st_mtim));
  meta.set_atime_ns(ToNanos(st.st_atim));
  if (S_ISLNK(st.st_mode)) return meta;
  std::string path = ByDescriptor(fd);
  for (std::string& name : CarriedNames(path)) {
    std::string value(kMaxValue, '\0');
    ssize_t n = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    if (n < 0) continue;
    value.resize(static_cast<size_t>(n));
    vrun::v1::Xattr* xattr = meta.add_xattrs();
    xattr->set_name(std::move(name));
    xattr->set_value(std::move(value));
  }
  return meta;
}

}  // namespace vrun::home
