// SPDX-License-Identifier: Apache-2.0
#include "tree_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace vrun::test {
namespace {

void DescribeInto(const std::string& path, const std::string& relative, Description* out) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) return;
  Described d;
  d.mode = st.st_mode;
  d.uid = st.st_uid;
  d.gid = st.st_gid;
  d.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  d.ino = st.st_ino;
  d.nlink = st.st_nlink;
  char buffer[65536];
  if (S_ISREG(st.st_mode)) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME);
    ssize_t n;
    while ((n = ::read(fd, buffer, sizeof buffer)) > 0) d.content.append(buffer, static_cast<size_t>(n));
    ::close(fd);
  } else if (S_ISLNK(st.st_mode)) {
    ssize_t n = ::readlink(path.c_str(), buffer, sizeof buffer);
    d.content.assign(buffer, static_cast<size_t>(n < 0 ? 0 : n));
  }
  ssize_t names = ::llistxattr(path.c_str(), buffer, sizeof buffer);
  for (ssize_t i = 0; i < names;) {
    std::string name = buffer + i;
    i += static_cast<ssize_t>(name.size()) + 1;
    if (name.starts_with("trusted.") || name == "security.selinux") continue;
    char value[4096];
    ssize_t n = ::lgetxattr(path.c_str(), name.c_str(), value, sizeof value);
    if (n >= 0) d.xattrs[name].assign(value, static_cast<size_t>(n));
  }
  bool directory = S_ISDIR(st.st_mode);
  (*out)[relative] = std::move(d);
  if (!directory) return;
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return;
  while (dirent* entry = ::readdir(dir)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") DescribeInto(path + "/" + name, relative + "/" + name, out);
  }
  ::closedir(dir);
}

const char* const kNames[] = {"a", "b", "c", "d", "e", "f", "g\nh", "\xff\xfe", "long name with blanks", "z"};

}  // namespace

Description Describe(const std::string& top) {
  Description out;
  DescribeInto(top, "", &out);
  return out;
}

std::string Differences(const Description& want, const Description& got, const std::set<ino_t>& shared) {
  std::string out;
  auto say = [&](const std::string& path, const std::string& text) { out += "  '" + path + "': " + text + "\n"; };
  std::map<ino_t, std::string> want_group, got_group;  // first path of an inode
  for (const auto& [path, w] : want) {
    auto it = got.find(path);
    if (it == got.end()) {
      say(path, "missing");
      continue;
    }
    const Described& g = it->second;
    if ((w.mode & S_IFMT) != (g.mode & S_IFMT)) {
      say(path, "another type");
      continue;
    }
    if (w.content != g.content) {
      say(path, "another content (" + std::to_string(w.content.size()) + ", " + std::to_string(g.content.size()) + ")");
    }
    if (shared.contains(g.ino)) continue;
    if (w.mode != g.mode)
      say(path, "mode " + std::to_string(w.mode & 07777) + ", got " + std::to_string(g.mode & 07777));
    if (w.uid != g.uid || w.gid != g.gid) say(path, "another owner");
    if (w.mtime_ns != g.mtime_ns) {
      say(path, "mtime " + std::to_string(w.mtime_ns) + ", got " + std::to_string(g.mtime_ns));
    }
    if (w.xattrs != g.xattrs) say(path, "other attributes");
    if (!S_ISDIR(w.mode)) {
      if (want_group.try_emplace(w.ino, path).first->second != got_group.try_emplace(g.ino, path).first->second) {
        say(path, "another group of hard links");
      }
    }
  }
  for (const auto& [path, g] : got) {
    if (!want.contains(path)) say(path, "is there, but should not be");
  }
  return out;
}

void RandomWork::Refresh() {
  directories_ = {""};
  paths_.clear();
  for (const auto& [path, d] : Describe(top_)) {
    if (path.empty()) continue;
    paths_.push_back(path);
    if (S_ISDIR(d.mode)) directories_.push_back(path);
  }
}

std::string RandomWork::AnyDirectory() { return top_ + directories_[Pick(directories_.size())]; }
std::string RandomWork::AnyPath() { return paths_.empty() ? NewPath() : top_ + paths_[Pick(paths_.size())]; }
std::string RandomWork::NewPath() { return AnyDirectory() + "/" + kNames[Pick(std::size(kNames))]; }

std::string RandomWork::Bytes(size_t n) {
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random_());
  return out;
}

void RandomWork::BuildTree(int entries, bool hard_links) {
  for (int i = 0; i < entries; ++i) {
    Refresh();
    std::string path = NewPath();
    switch (Pick(8)) {
      case 0:
      case 1:
      case 2: ::mkdir(path.c_str(), 0755); break;
      case 3: (void)!::symlink("some/where", path.c_str()); break;
      case 4:
        if (hard_links) (void)!::link(AnyPath().c_str(), path.c_str());
        break;
      default: {
        int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
        std::string bytes = Bytes(Pick(3000));
        if (fd >= 0) (void)!::write(fd, bytes.data(), bytes.size());
        ::close(fd);
        if (Pick(4) == 0) ::lsetxattr(path.c_str(), "user.lower", "1", 1, 0);
      }
    }
  }
}

void RandomWork::Step() {
  if (paths_.empty() || Pick(3) == 0) Refresh();
  std::string a = AnyPath();
  std::string b = Pick(2) == 0 ? NewPath() : AnyPath();
  std::string what;
  int result = 0;
  auto write = [&](const std::string& path, int flags, off_t at, size_t n) {
    struct stat st;
    if (::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) return -1;
    int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0) return -1;
    std::string bytes = Bytes(n);
    ssize_t done = at < 0 ? ::write(fd, bytes.data(), n) : ::pwrite(fd, bytes.data(), n, at);
    ::close(fd);
    return done < 0 ? -1 : 0;
  };
  switch (Pick(27)) {
    case 0:
    case 1: what = "create", b = NewPath(), result = write(b, O_WRONLY | O_CREAT | O_TRUNC, -1, Pick(5000)); break;
    case 2: what = "append", result = write(a, O_WRONLY | O_APPEND, -1, 1 + Pick(3000)); break;
    case 3: what = "sparse", result = write(a, O_WRONLY, static_cast<off_t>(Pick(3'500'000)), 1 + Pick(100'000)); break;
    case 4: what = "truncate", result = ::truncate(a.c_str(), static_cast<off_t>(Pick(6000))); break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9: what = "rename", result = ::rename(a.c_str(), b.c_str()); break;
    case 10:
    case 11:
    case 12: what = "exchange", result = ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE); break;
    case 13: what = "link", b = NewPath(), result = ::link(a.c_str(), b.c_str()); break;
    case 14: what = "unlink", result = ::unlink(a.c_str()); break;
    case 15: what = "rmdir", result = ::rmdir(a.c_str()); break;
    case 16:
    case 17: what = "mkdir", b = NewPath(), result = ::mkdir(b.c_str(), 0711); break;
    case 18: what = "symlink", b = NewPath(), result = ::symlink(Bytes(3).c_str(), b.c_str()); break;
    case 19: {
      struct stat st;
      what = "chmod";
      result = ::lstat(a.c_str(), &st) == 0 && !S_ISLNK(st.st_mode)
                   ? ::chmod(a.c_str(), static_cast<mode_t>(Pick(010000)))
                   : -1;
      break;
    }
    case 20:
      what = "chown",
      result = ::lchown(a.c_str(), static_cast<uid_t>(Pick(3) * 1000), static_cast<gid_t>(Pick(2) * 77));
      break;
    case 21: {
      struct timespec times[2] = {{static_cast<time_t>(Pick(2'000'000'000)), 5},
                                  {static_cast<time_t>(Pick(2'000'000'000)), static_cast<long>(Pick(1'000'000'000))}};
      what = "utimes", result = ::utimensat(AT_FDCWD, a.c_str(), times, AT_SYMLINK_NOFOLLOW);
      break;
    }
    case 22: what = "xattr", result = ::lsetxattr(a.c_str(), "user.test", "value", 1 + Pick(5), 0); break;
    case 23: what = "no xattr", result = ::lremovexattr(a.c_str(), Pick(2) == 0 ? "user.lower" : "user.test"); break;
    case 24: {
      what = "special", b = NewPath();
      result = ::mknod(b.c_str(), (Pick(2) == 0 ? S_IFIFO : S_IFSOCK) | 0600, 0);
      break;
    }
    case 25: {
      what = "rm -r";
      std::error_code error;
      if (Pick(3) == 0) std::filesystem::remove_all(a, error);
      break;
    }
    case 26: {
      // user::rw-, user:1000:r--, group::r--, mask::r--, other::---
      static const unsigned char kAcl[] = {2, 0,   0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                                           0, 232, 3,   0,   0,   4,   0,  4, 0,   255, 255, 255, 255, 16, 0,
                                           4, 0,   255, 255, 255, 255, 32, 0, 0,   0,   255, 255, 255, 255};
      struct stat st;
      what = "acl";
      result = ::lstat(a.c_str(), &st) == 0 && !S_ISLNK(st.st_mode)
                   ? ::lsetxattr(a.c_str(), "system.posix_acl_access", kAcl, sizeof kAcl, 0)
                   : -1;
      break;
    }
  }
  if (result == 0) log_.push_back(what + " '" + a.substr(top_.size()) + "' '" + b.substr(top_.size()) + "'");
}

}  // namespace vrun::test
