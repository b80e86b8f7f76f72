// SPDX-License-Identifier: Apache-2.0
#include "home/root_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {
namespace {

Error Changed(std::string_view path) {
  return Error(Code::kAborted, Escape(path) + ": changed at home after the job's tree was taken");
}

int64_t Nanos(const timespec& t) { return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; }

}  // namespace

Result<RootFiles> RootFiles::Open(const std::string& root) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(root, O_PATH | O_DIRECTORY));
  return RootFiles(std::move(fd));
}

Status RootFiles::Check(int fd, std::string_view path, const tree::FileVersion& version) const {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("stat " + Escape(path));
  tree::FileVersion now{st.st_dev, st.st_ino, Nanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
  if (!S_ISREG(st.st_mode) || now != version) return Changed(path);
  return {};
}

Result<UniqueFd> RootFiles::OpenVersion(std::string_view path, const tree::FileVersion& version) const {
  if (path.size() < 2 || path[0] != '/' || path.find('\0') != std::string_view::npos) {
    return Error(Code::kInvalid, "not a path of a file: " + Escape(path));
  }
  std::string relative(path.substr(1));
  open_how how{};
  // O_PATH first: opening a FIFO or a device would already do something to it.
  how.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd handle;
  // EAGAIN: a rename happened while the kernel made sure that it stays beneath.
  for (int tries = 0; tries < 64; ++tries) {
    handle.Reset(static_cast<int>(::syscall(SYS_openat2, root_.get(), relative.c_str(), &how, sizeof how)));
    if (handle || (errno != EAGAIN && errno != EINTR)) break;
  }
  if (!handle) {
    int e = errno;
    if (e == ENOENT || e == ENOTDIR || e == ELOOP || e == EXDEV) return Changed(path);
    return ErrnoError(e, "open " + Escape(path));
  }
  VRUN_TRY(Check(handle.get(), path, version));
  std::string link = "/proc/self/fd/" + std::to_string(handle.get());
  int fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME);
  if (fd < 0 && errno == EPERM) fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    int e = errno;
    if (e == EACCES || e == EPERM) {
      return Error(Code::kDenied, Escape(path) + ": permission denied: your user may not read it at home");
    }
    return ErrnoError(e, "open " + Escape(path));
  }
  UniqueFd file(fd);
  // What is asked for is read, and no more: the page cache tells what is wanted of a file (residency.h).
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  VRUN_TRY(Check(file.get(), path, version));
  return file;
}

}  // namespace vrun::home
