// SPDX-License-Identifier: Apache-2.0
#include "home/root/safe_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <climits>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {
namespace {
constexpr size_t kMaxPath = 65536;
constexpr int kDirectoryFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

int OpenBeneath(int directory, const char* relative) {
  struct open_how how = {};
  how.flags = kDirectoryFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(::syscall(SYS_openat2, directory, relative, &how, sizeof how));
}
}  // namespace

Status CheckRootPath(std::string_view path) {
  auto bad = [&] { return Error(Code::kInvalid, "a path that cannot be in a root: " + Escape(path.substr(0, 200))); };
  if (path.empty() || path[0] != '/' || path.size() > kMaxPath || path.find('\0') != std::string_view::npos)
    return bad();
  if (path == "/") return {};
  for (size_t at = 1; at <= path.size();) {
    size_t end = path.find('/', at);
    if (end == std::string_view::npos) end = path.size();
    std::string_view name = path.substr(at, end - at);
    if (name.empty() || name == "." || name == ".." || name.size() > NAME_MAX) return bad();
    at = end + 1;
    if (end + 1 == path.size()) return bad();  // a final slash
  }
  return {};
}

std::string_view ParentOf(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string_view::npos ? std::string_view("/") : path.substr(0, slash);
}

std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string ChildOf(std::string_view directory, std::string_view name) {
  std::string out(directory);
  if (out != "/") out += '/';
  out += name;
  return out;
}

bool AtOrBelow(std::string_view path, std::string_view prefix) {
  if (prefix == "/") return true;
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/');
}

Result<SafeRoot> SafeRoot::Open(const std::string& directory) {
  SafeRoot root;
  VRUN_ASSIGN(root.top_, OpenFile(directory, O_PATH | O_DIRECTORY));
  return root;
}

// One component at a time, for kernels and seccomp filters without openat2.
Result<UniqueFd> SafeRoot::Walk(int from, const std::string& relative) const {
  UniqueFd at;
  int directory = from;
  for (size_t begin = 0; begin <= relative.size();) {
    size_t end = relative.find('/', begin);
    if (end == std::string::npos) end = relative.size();
    UniqueFd next(::openat(directory, relative.substr(begin, end - begin).c_str(), kDirectoryFlags));
    if (!next) return ErrnoError("open /" + Escape(relative));
    at = std::move(next);
    directory = at.get();
    begin = end + 1;
  }
  return at;
}

Result<UniqueFd> SafeRoot::OpenDirectory(std::string_view path) const {
  std::string rest = path.size() <= 1 ? "." : std::string(path.substr(1));
  UniqueFd at;
  for (;;) {
    size_t cut = rest.size() < PATH_MAX ? rest.size() : rest.rfind('/', PATH_MAX - 2);
    std::string piece = rest.substr(0, cut);
    int directory = at ? at.get() : top_.get();
    UniqueFd next(OpenBeneath(directory, piece.c_str()));
    if (!next && (errno == ENOSYS || errno == EPERM)) {
      VRUN_ASSIGN(next, Walk(directory, piece));
    }
    if (!next) return ErrnoError(errno == ELOOP ? ENOTDIR : errno, "open " + Escape(path));
    at = std::move(next);
    if (cut >= rest.size()) return at;
    rest.erase(0, cut + 1);
  }
}

Result<std::optional<struct stat>> LstatAt(int directory, const std::string& name) {
  struct stat st;
  if (::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0)) == 0) return st;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  return ErrnoError("read the attributes of " + Escape(name));
}

}  // namespace vrun::home
