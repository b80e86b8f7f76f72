// SPDX-License-Identifier: Apache-2.0
#include "base/io/copy_content.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/files.h"

namespace vrun {
namespace {

constexpr uint64_t kStep = 64u << 20;  // per copy_file_range
constexpr size_t kBuffer = 1u << 20;

// Copies what there is of [offset, offset + length); returns its end.
Result<uint64_t> CopyRange(int from, int to, uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  std::unique_ptr<char[]> buffer;  // set once the kernel has refused to copy
  for (uint64_t at = offset; at < end;) {
    if (buffer == nullptr) {
      auto in = static_cast<loff_t>(at), out = static_cast<loff_t>(at);
      const ssize_t n = ::copy_file_range(from, &in, to, &out, std::min(kStep, end - at), 0);
      if (n > 0) at += static_cast<uint64_t>(n);
      if (n == 0) return at;
      if (n > 0 || errno == EINTR) continue;
      const bool refused = errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS;
      if (!refused) return ErrnoError("copy");
      buffer.reset(new char[kBuffer]);
    }
    VRUN_ASSIGN(const size_t n, PreadUpTo(from, buffer.get(), std::min<uint64_t>(kBuffer, end - at), at));
    if (n == 0) return at;
    VRUN_TRY(PwriteAll(to, {buffer.get(), n}, at));
    at += n;
  }
  return end;
}

// Makes [begin, end) of a file zeros without allocated blocks. Content beyond `end` may be lost.
Status MakeHole(int fd, uint64_t begin, uint64_t end) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return ErrnoError("copy");
  if (begin >= static_cast<uint64_t>(st.st_size) || begin >= end) return {};
  const auto length = static_cast<off_t>(end - begin);
  if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin), length) == 0) return {};
  if (::ftruncate(fd, static_cast<off_t>(begin)) != 0) return ErrnoError("copy");
  return {};
}

}  // namespace

Status ForEachData(int fd, uint64_t begin, uint64_t end,
                   const std::function<Status(uint64_t offset, uint64_t length)>& visit) {
  for (uint64_t at = begin; at < end;) {
    const off_t found = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (found < 0 && errno == ENXIO) return {};
    const off_t hole = found < 0 ? -1 : ::lseek(fd, found, SEEK_HOLE);
    if (hole <= found) return visit(at, end - at);
    const auto data = static_cast<uint64_t>(found);
    if (data >= end) return {};
    const uint64_t until = std::min(static_cast<uint64_t>(hole), end);
    VRUN_TRY(visit(data, until - data));
    at = until;
  }
  return {};
}

Result<uint64_t> CopyContent(int from, int to, uint64_t size) {
  const bool cloned = ::ioctl(to, FICLONE, from) == 0;
  uint64_t done = 0;  // up to here `to` is as `from`
  if (!cloned) {
    VRUN_TRY(ForEachData(from, 0, size, [&](uint64_t offset, uint64_t length) -> Status {
      VRUN_TRY(MakeHole(to, done, offset));
      VRUN_ASSIGN(done, CopyRange(from, to, offset, length));
      return {};
    }));
  }
  struct stat st {};
  if (::fstat(cloned ? to : from, &st) != 0) return ErrnoError("copy");
  const uint64_t end = std::min(size, static_cast<uint64_t>(st.st_size));
  if (!cloned) VRUN_TRY(MakeHole(to, std::min(done, end), end));
  if (::ftruncate(to, static_cast<off_t>(end)) != 0) return ErrnoError("copy");
  return end;
}

Status ReserveForContent(int from, int to, uint64_t size) {
  return ForEachData(from, 0, size, [&](uint64_t offset, uint64_t length) -> Status {
    const bool full =
        ::fallocate(to, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT);
    if (full) return ErrnoError("reserve room");
    return {};
  });
}

}  // namespace vrun
