// SPDX-License-Identifier: Apache-2.0
#include "home/apply_flush.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace vrun::home {
namespace {

constexpr size_t kFewOperations = 16;  // up to so many between two flushes are flushed one by one

}  // namespace

void ApplyFlush::Touched(int parent, UniqueFd file) {
  const bool few = ++operations_ <= kFewOperations;
  struct stat st;
  const bool known = ::fstat(parent, &st) == 0 && devices_.contains(st.st_dev);
  if (known && !few) return;
  UniqueFd directory(::openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    everywhere_ = true;  // a directory that may be written but not read
    return;
  }
  if (!known) devices_[st.st_dev] = UniqueFd(::fcntl(directory.get(), F_DUPFD_CLOEXEC, 0));
  if (!few) return;
  if (file) files_.push_back(std::move(file));
  files_.push_back(std::move(directory));
}

Status ApplyFlush::Flush() {
  if (everywhere_) ::sync();
  if (operations_ <= kFewOperations) {
    for (const UniqueFd& fd : files_) {
      if (::fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoError("flush what the job wrote");
    }
  } else {
    for (const auto& [device, fd] : devices_) {
      if (::syncfs(fd.get()) != 0) return ErrnoError("flush what the job wrote");
    }
  }
  *this = ApplyFlush();
  return {};
}

}  // namespace vrun::home
