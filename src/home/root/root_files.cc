// SPDX-License-Identifier: Apache-2.0
#include "home/root/root_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "home/root/safe_root.h"
#include "tree/scan/listing.h"

namespace vrun::home {
namespace {

Error Changed(std::string_view path) {
  return Error(Code::kAborted, Escape(path) + ": changed at home after the job's tree was taken");
}

}  // namespace

Result<RootFiles> RootFiles::Open(const std::string& root, std::shared_ptr<const SharedMappings> mappings) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(root, O_PATH | O_DIRECTORY));
  return RootFiles(std::move(fd), std::move(mappings));
}

Status RootFiles::Check(int fd, std::string_view path, const tree::FileVersion& version) const {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("stat " + Escape(path));
  tree::FileVersion now{st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
  if (!S_ISREG(st.st_mode) || now != version) return Changed(path);
  return {};
}

Result<UniqueFd> RootFiles::OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                                     uint64_t length) const {
  VRUN_TRY(CheckRootPath(path));
  // O_PATH first: opening a FIFO or a device would have effects.
  const int opened = tree::OpenPath(root_.get(), path.substr(1), O_PATH | O_CLOEXEC | O_NOFOLLOW);
  const UniqueFd handle(std::max(opened, -1));
  if (!handle) {
    const int e = -opened;
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
  if (judge_) {
    struct stat st;
    if (::fstat(fd, &st) != 0) return ErrnoError("stat " + Escape(path));
    VRUN_TRY(judge_(fd, st, path));
  }
  // No read-ahead: the page cache must show which parts of a file are really used (residency.h).
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  if (mappings_) mappings_->Settle(file.get(), version, offset, length);
  VRUN_TRY(Check(file.get(), path, version));
  return file;
}

}  // namespace vrun::home
