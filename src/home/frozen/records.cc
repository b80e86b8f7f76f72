// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/records.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::home {

Status Records::PutCommon(std::string_view content, bool loose) {
  if (has_common_ && common_ == content && (loose || !common_loose_)) return {};
  has_common_ = false;
  VRUN_ASSIGN(UniqueFd file, Write(common_path_, content));
  if (!loose) new_.push_back(std::move(file));
  common_ = content;
  common_loose_ = loose;
  has_common_ = true;
  return {};
}

Status Records::Prepare(std::string_view content) {
  MutexLock lock(mutex_);
  return PutCommon(content, false);
}

Status Records::Put(const std::string& name, std::string_view content) {
  const std::string path = directory_ + "/" + name;
  MutexLock lock(mutex_);
  if (PutCommon(content, false) && Link(path)) return {};
  // It has as many names as a file can have, was removed, or the file system has no links.
  has_common_ = false;
  names_changed_ = true;
  VRUN_ASSIGN(UniqueFd file, Write(path, content));
  new_.push_back(std::move(file));
  return {};
}

Status Records::PutLoose(const std::string& name, std::string_view content, bool shared) {
  const std::string path = directory_ + "/" + name;
  MutexLock lock(mutex_);
  shared = shared || (has_common_ && common_ == content);
  if (shared && PutCommon(content, true) && Link(path)) return {};
  if (shared) has_common_ = false;
  VRUN_ASSIGN([[maybe_unused]] const UniqueFd file, Write(path, content));
  return {};
}

Result<UniqueFd> Records::Write(const std::string& path, std::string_view content) {
  if (!std::exchange(made_, true)) VRUN_TRY(MakeDirs(directory_, 0700));
  const std::string temporary = path + ".new";
  const auto write = [&]() -> Result<UniqueFd> {
    VRUN_ASSIGN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
    VRUN_TRY(WriteAll(fd.get(), content));
    if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError("rename to " + Escape(path));
    return fd;
  };
  Result<UniqueFd> written = write();
  if (written) return written;
  made_ = false;  // the directory may have been removed
  ::unlink(temporary.c_str());
  return std::move(written).error().With("write " + Escape(path));
}

Status Records::Link(const std::string& path) {
  names_changed_ = true;
  if (::link(common_path_.c_str(), path.c_str()) == 0) return {};
  if (errno != EEXIST) return ErrnoError("link " + Escape(path));
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());
  if (::link(common_path_.c_str(), temporary.c_str()) != 0) return ErrnoError("link " + Escape(temporary));
  const bool renamed = ::rename(temporary.c_str(), path.c_str()) == 0;
  Status status = renamed ? Status() : Status(ErrnoError("rename to " + Escape(path)));
  ::unlink(temporary.c_str());  // a rename does nothing if both are the same file already
  return status;
}

Status Records::Sync() {
  std::vector<UniqueFd> files;
  bool names;
  {
    MutexLock lock(mutex_);
    names = std::exchange(names_changed_, false);
    files = std::exchange(new_, {});
  }
  const auto sync = [&]() -> Status {
    for (const UniqueFd& file : files) {
      if (::fsync(file.get()) != 0) return ErrnoError("sync a file in " + Escape(directory_));
    }
    if (!names) return {};
    VRUN_ASSIGN(const UniqueFd directory, OpenFile(directory_, O_RDONLY | O_DIRECTORY));
    if (::fsync(directory.get()) != 0 && errno != EINVAL) return ErrnoError("sync " + Escape(directory_));
    return {};
  };
  Status synced = sync();
  if (synced) return {};
  // Whoever waited is told. What follows has no part in it.
  MutexLock lock(mutex_);
  names_changed_ = names_changed_ || names;
  has_common_ = false;
  return synced;
}

}  // namespace vrun::home
