// SPDX-License-Identifier: Apache-2.0
#include "node/carry/overlay_layer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/xattr.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::node {
namespace {

uint32_t LoadLe32(const char* p) {
  unsigned char b[4];
  std::memcpy(b, p, 4);
  return uint32_t{b[0]} | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

void StoreLe32(char* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<char>(v >> (8 * i));
}

// struct posix_acl_xattr_header { le32 version } then { le16 tag, le16 permissions, le32 id } each. The kernel shows
// the ids in the reader's namespace, here the host's.
std::string HomeAcl(std::string acl, const IdMap& ids) {
  for (size_t at = 4; at + 8 <= acl.size(); at += 8) {
    int tag = static_cast<unsigned char>(acl[at]) | static_cast<unsigned char>(acl[at + 1]) << 8;
    if (tag != 0x02 && tag != 0x08) continue;  // ACL_USER, ACL_GROUP: the only ones with an id
    StoreLe32(&acl[at + 4], ids.ToHome(LoadLe32(&acl[at + 4])));
  }
  return acl;
}

// A capability set inside a user namespace has revision 3 and contains the host uid of that namespace's root; at home
// it has revision 2. One of another namespace is meaningless at home.
std::optional<std::string> HomeCapability(const std::string& value, uint32_t uid_base) {
  if (value.size() < 4) return std::nullopt;
  uint32_t magic = LoadLe32(value.data());
  if ((magic & 0xff000000u) != 0x03000000u) return value;
  if (value.size() != 24 || LoadLe32(&value[20]) != uid_base) return std::nullopt;
  std::string out = value.substr(0, 20);
  StoreLe32(out.data(), (magic & 0x00ffffffu) | 0x02000000u);
  return out;
}

std::string RelativeTo(std::string_view path) { return path.size() <= 1 ? "." : std::string(path.substr(1)); }

// openat for paths longer than the kernel's limit, in several steps.
Result<UniqueFd> OpenAtAnyLength(int top, std::string_view path, int flags) {
  std::string rest = RelativeTo(path);
  UniqueFd at;
  int directory = top;
  while (rest.size() >= PATH_MAX) {
    size_t cut = rest.rfind('/', PATH_MAX - 2);
    if (cut == std::string::npos) return ErrnoError(ENAMETOOLONG, "open " + Escape(path));
    UniqueFd next(::openat(directory, rest.substr(0, cut).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) return ErrnoError("open " + Escape(path));
    at = std::move(next);
    directory = at.get();
    rest.erase(0, cut + 1);
  }
  UniqueFd fd(::openat(directory, rest.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return ErrnoError("open " + Escape(path));
  return fd;
}

bool IsAbsence(const Error& error) { return error.error_number() == ENOENT || error.error_number() == ENOTDIR; }

}  // namespace

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string out(directory);
  if (out != "/") out += '/';
  out += name;
  return out;
}

std::string_view ParentPath(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string_view::npos ? std::string_view("/") : path.substr(0, slash);
}

std::string_view BaseName(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool IsAtOrBelow(std::string_view path, std::string_view prefix) {
  if (prefix == "/") return true;
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/');
}

vrun::v1::BaseVersion VersionOf(const struct stat& st) {
  vrun::v1::BaseVersion version;
  version.set_ino(st.st_ino);
  version.set_type(st.st_mode & S_IFMT);
  if (S_ISDIR(st.st_mode)) return version;
  version.set_ctime_ns(ToNanos(st.st_ctim));
  version.set_mtime_ns(ToNanos(st.st_mtim));
  version.set_size(static_cast<uint64_t>(st.st_size));
  version.set_nlink(st.st_nlink);
  return version;
}

Result<OverlayLayer> OverlayLayer::Open(const std::string& directory, bool user_xattrs, const std::string& apart) {
  OverlayLayer layer;
  layer.top_ = directory;
  layer.prefix_ = user_xattrs ? "user.overlay." : "trusted.overlay.";
  VRUN_ASSIGN(layer.top_fd_, OpenFile(directory, O_PATH | O_DIRECTORY));
  if (!apart.empty()) {
    VRUN_ASSIGN(OverlayLayer other, Open(apart, user_xattrs));
    layer.apart_ = std::make_unique<OverlayLayer>(std::move(other));
  }
  return layer;
}

Result<UniqueFd> OverlayLayer::OpenDirectory(std::string_view path) const {
  // O_NOATIME, so that reading does not change what the command left.
  return OpenAtAnyLength(top_fd_.get(), path, O_RDONLY | O_DIRECTORY | O_NOATIME);
}

Result<UniqueFd> OverlayLayer::OpenRegular(std::string_view path) const {
  return OpenAtAnyLength(top_fd_.get(), path, O_RDONLY | O_NONBLOCK | O_NOATIME);
}

Result<std::optional<struct stat>> OverlayLayer::Lstat(std::string_view path) const {
  struct stat st;
  UniqueFd parent;
  std::string rest = RelativeTo(path);
  if (rest.size() >= PATH_MAX) {
    auto opened = OpenAtAnyLength(top_fd_.get(), ParentPath(path), O_PATH | O_DIRECTORY);
    if (!opened) {
      if (IsAbsence(opened.error())) return std::nullopt;
      return std::move(opened).error();
    }
    parent = *std::move(opened);
    rest = BaseName(path);
  }
  if (::fstatat(parent ? parent.get() : top_fd_.get(), rest.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) return st;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  return ErrnoError("read the attributes of " + Escape(path));
}

Result<std::vector<LayerEntry>> OverlayLayer::List(std::string_view path) const {
  VRUN_ASSIGN(UniqueFd fd, OpenDirectory(path));
  DIR* dir = ::fdopendir(fd.get());
  if (dir == nullptr) return ErrnoError("list " + Escape(path));
  fd.Release();
  std::vector<LayerEntry> out;
  for (;;) {
    errno = 0;
    dirent* entry = ::readdir(dir);
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool directory = entry->d_type == DT_DIR;
    struct stat st;
    if (entry->d_type == DT_UNKNOWN && ::fstatat(::dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
      directory = S_ISDIR(st.st_mode);
    }
    out.push_back({std::string(name), directory});
  }
  int error = errno;
  ::closedir(dir);
  if (error != 0) return ErrnoError(error, "list " + Escape(path));
  std::sort(out.begin(), out.end(), [](const LayerEntry& a, const LayerEntry& b) { return a.name < b.name; });
  return out;
}

Result<OverlayLayer::Reachable> OverlayLayer::Reach(std::string_view path) const {
  Reachable out;
  if (top_.size() + path.size() < PATH_MAX) {
    out.path = path == "/" ? top_ : top_ + std::string(path);
    return out;
  }
  VRUN_ASSIGN(out.directory, OpenAtAnyLength(top_fd_.get(), ParentPath(path), O_PATH | O_DIRECTORY));
  out.path = "/proc/self/fd/" + std::to_string(out.directory.get()) + "/" + std::string(BaseName(path));
  return out;
}

Result<std::string> OverlayLayer::ReadLink(std::string_view path) const {
  VRUN_ASSIGN(Reachable at, Reach(path));
  char buffer[PATH_MAX + 1];
  ssize_t n = ::readlink(at.path.c_str(), buffer, sizeof buffer);
  if (n < 0) return ErrnoError("read the link " + Escape(path));
  return std::string(buffer, static_cast<size_t>(n));
}

Result<std::optional<std::string>> OverlayLayer::Xattr(std::string_view path, const std::string& name) const {
  if (apart_) {
    VRUN_ASSIGN(const auto there, apart_->Lstat(path));
    if (!there) return std::nullopt;
    return apart_->Xattr(path, name);
  }
  VRUN_ASSIGN(Reachable at, Reach(path));
  std::string value(256, '\0');
  for (;;) {
    ssize_t n = ::lgetxattr(at.path.c_str(), name.c_str(), value.data(), value.size());
    if (n >= 0) {
      value.resize(static_cast<size_t>(n));
      return value;
    }
    if (errno == ENODATA || errno == EOPNOTSUPP) return std::nullopt;
    if (errno != ERANGE || value.size() > (1u << 20)) return ErrnoError("read " + name + " of " + Escape(path));
    value.resize(value.size() * 16);
  }
}

Result<std::optional<std::string>> OverlayLayer::OverlayXattr(std::string_view path, std::string_view suffix) const {
  return Xattr(path, prefix_ + std::string(suffix));
}

Result<bool> OverlayLayer::IsOpaque(std::string_view path) const {
  VRUN_ASSIGN(auto value, OverlayXattr(path, "opaque"));
  return value == "y";  // "x" only says that whiteouts may be xattrs
}

Result<bool> OverlayLayer::IsMetacopy(std::string_view path) const {
  VRUN_ASSIGN(auto value, OverlayXattr(path, "metacopy"));
  return value.has_value();
}

Result<bool> OverlayLayer::IsWhiteout(std::string_view path, const struct stat& st) const {
  if (S_ISCHR(st.st_mode)) return st.st_rdev == 0;
  if (!S_ISREG(st.st_mode) || st.st_size != 0) return false;
  VRUN_ASSIGN(auto value, OverlayXattr(path, "whiteout"));
  return value.has_value();
}

Result<std::optional<std::string>> OverlayLayer::Redirect(std::string_view path) const {
  VRUN_ASSIGN(auto value, OverlayXattr(path, "redirect"));
  if (!value) return std::nullopt;
  bool absolute = value->starts_with('/');
  if (value->empty() || value->find('\0') != std::string::npos ||
      (!absolute && value->find('/') != std::string::npos)) {
    return Error(Code::kCorrupt, Escape(path) + ": the overlay says that it was renamed from " + Escape(*value));
  }
  return value;
}

Result<vrun::v1::Meta> OverlayLayer::ReadMeta(std::string_view path, const struct stat& st, const IdMap& ids) const {
  vrun::v1::Meta meta;
  meta.set_mode(st.st_mode);
  meta.set_uid(ids.ToHome(st.st_uid));
  meta.set_gid(ids.ToHome(st.st_gid));
  meta.set_mtime_ns(ToNanos(st.st_mtim));
  meta.set_atime_ns(ToNanos(st.st_atim));
  if (apart_) {
    VRUN_ASSIGN(const auto there, apart_->Lstat(path));
    if (there) return apart_->ReadMeta(path, st, ids);
    return meta;
  }
  VRUN_ASSIGN(Reachable at, Reach(path));
  std::string names(1024, '\0');
  ssize_t n;
  while ((n = ::llistxattr(at.path.c_str(), names.data(), names.size())) < 0 && errno == ERANGE &&
         names.size() < (1u << 20)) {
    names.resize(names.size() * 8);
  }
  if (n < 0) {
    if (errno == EOPNOTSUPP) return meta;
    return ErrnoError("list the attributes of " + Escape(path));
  }
  names.resize(static_cast<size_t>(n));
  std::vector<std::string> wanted;
  for (size_t i = 0; i < names.size();) {
    std::string name = names.c_str() + i;
    i += name.size() + 1;
    bool acl = name == "system.posix_acl_access" || name == "system.posix_acl_default";
    bool carried = acl || name == "security.capability" || (name.starts_with("user.") && !name.starts_with(prefix_));
    if (carried) wanted.push_back(std::move(name));
  }
  std::sort(wanted.begin(), wanted.end());
  for (std::string& name : wanted) {
    VRUN_ASSIGN(auto value, Xattr(path, name));
    if (value && name.starts_with("system.posix_acl")) value = HomeAcl(*std::move(value), ids);
    if (value && name == "security.capability") value = HomeCapability(*value, ids.base());
    if (!value) continue;
    vrun::v1::Xattr* xattr = meta.add_xattrs();
    xattr->set_name(std::move(name));
    xattr->set_value(*std::move(value));
  }
  return meta;
}

}  // namespace vrun::node
