// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/escape.h"

namespace vrun {

Result<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return ErrnoError("open " + Escape(path));
  return UniqueFd(fd);
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string out;
  char buffer[65536];
  for (;;) {
    const Result<size_t> got = ReadUpTo(fd.get(), buffer, sizeof buffer);
    if (!got) return ErrnoError(got.error().error_number(), "read " + Escape(path));
    const size_t n = *got;
    if (out.size() + n > max_bytes) return Error(Code::kExhausted, Escape(path) + ": larger than expected");
    out.append(buffer, n);
    if (n < sizeof buffer) return out;
  }
}

namespace {

// Whether a file may take its place: not that of a device or of /dev/stdout, which the whole machine would miss.
Status MayBeReplaced(const std::string& path) {
  const auto may = [](mode_t mode) { return !S_ISCHR(mode) && !S_ISBLK(mode); };
  struct stat st = {};
  if (::lstat(path.c_str(), &st) != 0) return {};
  char target[8] = {};
  const bool link = S_ISLNK(st.st_mode) && ::readlink(path.c_str(), target, 6) > 0;
  if (std::string_view(target) != "/proc/" && may(st.st_mode) &&
      (!link || ::stat(path.c_str(), &st) != 0 || may(st.st_mode))) {
    return {};
  }
  return Error(Code::kInvalid, "write " + Escape(path) + ": a device: name a file");
}

}  // namespace

Status WriteFileAtomic(const std::string& path, std::string_view data, mode_t mode) {
  VRUN_TRY(MayBeReplaced(path));
  std::string temporary = path + ".tmp." + std::to_string(::getpid());
  auto write = [&]() -> Status {
    VRUN_ASSIGN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode));
    if (::fchmod(fd.get(), mode) != 0) return ErrnoError("chmod " + Escape(temporary));
    VRUN_TRY(WriteAll(fd.get(), data));
    if (::fsync(fd.get()) != 0) return ErrnoError("fsync " + Escape(temporary));
    if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError("rename to " + Escape(path));
    return {};
  };
  Status status = write();
  if (!status) {
    ::unlink(temporary.c_str());
    return std::move(status).error().With("write " + Escape(path));
  }
  size_t slash = path.rfind('/');
  std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  VRUN_ASSIGN(UniqueFd dir, OpenFile(parent, O_RDONLY | O_DIRECTORY));
  if (::fsync(dir.get()) != 0 && errno != EINVAL) return ErrnoError("fsync " + Escape(parent));
  return {};
}

Status WriteKernelFile(const std::string& path, std::string_view data) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_WRONLY));
  if (::write(fd.get(), data.data(), data.size()) != static_cast<ssize_t>(data.size())) {
    return ErrnoError("write " + Escape(path));
  }
  return {};
}

Status WriteAll(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        pollfd p{fd, POLLOUT, 0};
        ::poll(&p, 1, -1);
        continue;
      }
      return ErrnoError("write");
    }
    data.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<size_t> ReadUpTo(int fd, void* buffer, size_t n) {
  size_t done = 0;
  while (done < n) {
    ssize_t r = ::read(fd, static_cast<char*>(buffer) + done, n - done);
    if (r < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read");
    }
    if (r == 0) break;
    done += static_cast<size_t>(r);
  }
  return done;
}

Result<size_t> PreadUpTo(int fd, void* buffer, size_t n, uint64_t offset) {
  size_t done = 0;
  while (done < n) {
    ssize_t r = ::pread(fd, static_cast<char*>(buffer) + done, n - done, static_cast<off_t>(offset + done));
    if (r < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("pread");
    }
    if (r == 0) break;
    done += static_cast<size_t>(r);
  }
  return done;
}

bool SameBeginning(int a, int b, uint64_t n) {
  constexpr size_t kPart = 256 * 1024;
  std::string ba(std::min<uint64_t>(kPart, n), '\0');
  std::string bb(ba.size(), '\0');
  for (uint64_t at = 0; at < n;) {
    const size_t part = static_cast<size_t>(std::min<uint64_t>(kPart, n - at));
    auto na = PreadUpTo(a, ba.data(), part, at);
    auto nb = PreadUpTo(b, bb.data(), part, at);
    if (!na || !nb || *na != part || *nb != part || std::memcmp(ba.data(), bb.data(), part) != 0) return false;
    at += part;
  }
  return true;
}

Status PwriteAll(int fd, std::string_view data, uint64_t offset) {
  while (!data.empty()) {
    ssize_t n = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("pwrite");
    }
    data.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Status MakeDirs(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return {};
  for (size_t i = 1; i <= path.size(); ++i) {
    if (i < path.size() && path[i] != '/') continue;
    std::string prefix = path.substr(0, i);
    if (::mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST) {
      int e = errno;
      struct stat st;
      // mkdir in a read-only parent fails with EROFS
      if (::stat(prefix.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) continue;
      return ErrnoError(e, "mkdir " + Escape(prefix));
    }
  }
  return {};
}

namespace {

// Descriptors, not the stack, limit the depth: each level holds its directory stream.
Status RemoveBelow(int parent, const char* name, dev_t device) {
  int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return ErrnoError(std::string("open ") + Escape(name));
  struct stat st;
  if (::fstat(fd, &st) != 0 || st.st_dev != device) {
    ::close(fd);
    return Error(Code::kDenied, Escape(name) + ": a mount point: unmount it first");
  }
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(fd), ::closedir);
  if (dir == nullptr) {
    ::close(fd);
    return ErrnoError("fdopendir");
  }
  while (dirent* e = ::readdir(dir.get())) {
    std::string_view child = e->d_name;
    if (child == "." || child == "..") continue;
    if (::unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT) continue;
    if (errno != EISDIR && errno != EPERM) return ErrnoError("unlink " + Escape(child));
    VRUN_TRY(RemoveBelow(fd, e->d_name, device));
    if (::unlinkat(fd, e->d_name, AT_REMOVEDIR) != 0 && errno != ENOENT) return ErrnoError("rmdir " + Escape(child));
  }
  return {};
}

}  // namespace

Status RemoveTree(const std::string& path) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return {};
    return ErrnoError("lstat " + Escape(path));
  }
  if (!S_ISDIR(st.st_mode)) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("unlink " + Escape(path));
    return {};
  }
  Status below = RemoveBelow(AT_FDCWD, path.c_str(), st.st_dev);
  if (!below) return std::move(below).error().With("remove " + Escape(path));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("rmdir " + Escape(path));
  return {};
}

bool PathExists(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0;
}

Status SetNonBlocking(int fd, bool on) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoError("fcntl F_GETFL");
  int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (wanted != flags && ::fcntl(fd, F_SETFL, wanted) != 0) return ErrnoError("fcntl F_SETFL");
  return {};
}

}  // namespace vrun
