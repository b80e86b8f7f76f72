// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/root_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <memory>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::gpu {
namespace {

std::string ProcPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace

Result<UniqueFd> OpenBelow(int root, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something was mounted or renamed on this host while ".." of a link was followed. That happens all the time
  // where sandboxes are made.
  constexpr int kMostTries = 64;
  for (int tries = 0;; ++tries) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
    if (fd) return fd;
    if (errno != EAGAIN || tries == kMostTries) return ErrnoError("open " + Escape(path));
  }
}

Result<UniqueFd> OpenBelow(int root, const std::string& path, struct stat* st) {
  VRUN_ASSIGN(UniqueFd fd, OpenBelow(root, path));
  if (::fstat(fd.get(), st) != 0) return ErrnoError("stat " + Escape(path));
  return fd;
}

Result<std::string> ReadBelow(int root, const std::string& path, size_t most) {
  struct stat st;
  VRUN_ASSIGN(UniqueFd place, OpenBelow(root, path, &st));
  if (!S_ISREG(st.st_mode)) return Error(Code::kInvalid, Escape(path) + ": not a regular file");
  if (st.st_size > static_cast<off_t>(most)) return Error(Code::kExhausted, Escape(path) + ": too large");
  UniqueFd file(::open(ProcPath(place.get()).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) return ErrnoError("open " + Escape(path));
  // Files of /proc have the size 0, and a file may grow.
  std::string bytes(std::min<size_t>(most, std::max<size_t>(static_cast<size_t>(st.st_size), 1 << 16)), '\0');
  VRUN_ASSIGN(const size_t n, ReadUpTo(file.get(), bytes.data(), bytes.size()));
  bytes.resize(n);
  return bytes;
}

Result<std::string> PathOf(int fd) {
  char path[PATH_MAX];
  const ssize_t n = ::readlink(ProcPath(fd).c_str(), path, sizeof path);
  if (n < 0) return ErrnoError("readlink " + ProcPath(fd));
  return std::string(path, static_cast<size_t>(n));
}

Result<std::vector<std::string>> NamesIn(int directory) {
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open a directory");
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd), ::closedir);
  if (stream == nullptr) return ErrnoError("fdopendir");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vrun::gpu
