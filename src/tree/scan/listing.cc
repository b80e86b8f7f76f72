// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/listing.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "tree/codec.h"

namespace vrun::tree {
namespace {

constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
// openat2 refuses other flags together with O_PATH
constexpr int kPathFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Opens one component after the other: for kernels and filters without openat2.
int OpenStepwise(int dir_fd, std::string_view path, int flags) {
  UniqueFd at;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string component(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    const int next = ::openat(at ? at.get() : dir_fd, component.c_str(), path.empty() ? flags : kPathFlags);
    if (next < 0) return -errno;
    at.Reset(next);
  }
  return at.Release();
}

int OpenShort(int dir_fd, std::string_view path, int flags) {
  const std::string text(path);
  struct open_how how {};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, dir_fd, text.c_str(), &how, sizeof how);
  if (fd >= 0) return static_cast<int>(fd);
  // O_NOATIME on a directory that is not ours also gives EPERM; trying the other way distinguishes that from a filter.
  if (errno == ENOSYS || (errno == EPERM && !(flags & O_NOATIME))) return OpenStepwise(dir_fd, path, flags);
  return -errno;
}

}  // namespace

int OpenPath(int root_fd, std::string_view path, int flags) {
  UniqueFd at;
  // The kernel accepts PATH_MAX per call; a tree may be deeper.
  while (path.size() >= PATH_MAX - 1) {
    const size_t cut = path.rfind('/', PATH_MAX - 2);
    if (cut == std::string_view::npos) return -ENAMETOOLONG;
    const int next = OpenShort(at ? at.get() : root_fd, path.substr(0, cut), kPathFlags);
    if (next < 0) return next;
    at.Reset(next);
    path.remove_prefix(cut + 1);
  }
  return OpenShort(at ? at.get() : root_fd, path, flags);
}

int OpenDirectory(int root_fd, std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  if (path.empty()) path = ".";
  const int fd = OpenPath(root_fd, path, kFlags | O_NOATIME);
  return fd == -EPERM ? OpenPath(root_fd, path, kFlags) : fd;
}

bool OutOfResources(int e) { return e == EMFILE || e == ENFILE || e == ENOMEM || e == ENOBUFS; }

bool IsUnderWay(std::string_view name) {
  constexpr std::string_view kPrefix = ".vrun-";
  if (!name.starts_with(kPrefix)) return false;
  const size_t last = name.find_last_not_of("0123456789");
  const std::string_view middle = name.substr(kPrefix.size(), last + 1 - std::min(last + 1, kPrefix.size()));
  const size_t job = middle.find_first_not_of("0123456789");
  return last + 1 < name.size() && job != 0 && job != std::string_view::npos &&
         (middle.substr(job) == "-" || middle.substr(job) == "-s-");
}

int Names::Read(int fd) {
  // struct linux_dirent64: d_ino 8, d_off 8, d_reclen 2, d_type 1, d_name.
  constexpr size_t kBufferBytes = 256 * 1024;
  const std::unique_ptr<char[]> buffer(new char[kBufferBytes]);
  for (;;) {
    const long n = ::syscall(SYS_getdents64, fd, buffer.get(), kBufferBytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) break;
    for (long at = 0; at < n;) {
      const char* record = buffer.get() + at;
      uint64_t ino;
      uint16_t length;
      std::memcpy(&ino, record, sizeof ino);
      std::memcpy(&length, record + 16, sizeof length);
      const char* name = record + 19;
      at += length;
      if (!ValidName(name) || IsUnderWay(name)) continue;
      items_.push_back({ino, static_cast<uint32_t>(text_.size()), static_cast<uint8_t>(record[18])});
      text_.insert(text_.end(), name, name + std::strlen(name) + 1);
    }
  }
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.ino < b.ino; });
  return 0;
}

}  // namespace vrun::tree
