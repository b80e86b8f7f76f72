// SPDX-License-Identifier: Apache-2.0
#include "home/serve/lent_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"

namespace vrun::home {
namespace {

Error Changed() { return Error(Code::kAborted, "changed at home after the job's tree was taken"); }

size_t Most() {
  rlimit limit{1024, 1024};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(LentFiles::kMost, limit.rlim_cur / 8);
}

}  // namespace

LentFiles::LentFiles() : most_(Most()) {}

void LentFiles::Keep(const tree::FileVersion& version, int fd, uint64_t view) {
  UniqueFd dropped;  // closed without the lock: the last close of a removed file is slow
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  if (const auto known = by_version_.find(version); known != by_version_.end()) {
    known->second->used = now;
    known->second->view = view;
    files_.splice(files_.begin(), files_, known->second);
    return;
  }
  struct stat st {};
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own || ::fstat(own.get(), &st) != 0) return;
  files_.push_front({version, std::move(own), ToNanos(st.st_mtim), now, view});
  by_version_[version] = files_.begin();
  if (files_.size() <= most_) return;
  dropped = std::move(files_.back().fd);
  by_version_.erase(files_.back().version);
  files_.pop_back();
}

bool LentFiles::Has(const tree::FileVersion& version) const {
  MutexLock lock(mutex_);
  return by_version_.contains(version);
}

Result<UniqueFd> LentFiles::Open(const tree::FileVersion& version) {
  UniqueFd fd;
  {
    MutexLock lock(mutex_);
    const auto found = by_version_.find(version);
    if (found == by_version_.end()) return Changed();
    found->second->used = MonotonicMicros();
    files_.splice(files_.begin(), files_, found->second);
    fd = UniqueFd(::fcntl(found->second->fd.get(), F_DUPFD_CLOEXEC, 0));
  }
  if (!fd) return ErrnoError("duplicate a descriptor of a file that a job reads");
  VRUN_TRY(Check(version, fd.get()));
  return fd;
}

Status LentFiles::Check(const tree::FileVersion& version, int fd) const {
  int64_t mtime_ns = 0;
  {
    MutexLock lock(mutex_);
    const auto found = by_version_.find(version);
    if (found == by_version_.end()) return Changed();
    mtime_ns = found->second->mtime_ns;
  }
  struct stat st {};
  if (::fstat(fd, &st) != 0) return ErrnoError("stat a file that a job reads");
  // ctime proves nothing: it also changes when the file loses a name.
  if (ToNanos(st.st_mtim) != mtime_ns || static_cast<uint64_t>(st.st_size) != version.size) return Changed();
  return {};
}

template <typename Goes>
void LentFiles::DropIf(Goes goes) {
  std::list<Lent> dropped;
  MutexLock lock(mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    const auto next = std::next(it);
    if (goes(*it)) {
      by_version_.erase(it->version);
      dropped.splice(dropped.end(), files_, it);
    }
    it = next;
  }
}

void LentFiles::Drop(uint64_t view) {
  DropIf([view](const Lent& lent) { return lent.view == view; });
}

void LentFiles::Age(int64_t now_micros) {
  DropIf([now_micros](const Lent& lent) { return now_micros - lent.used > kUnusedMicros; });
}

size_t LentFiles::size() const {
  MutexLock lock(mutex_);
  return files_.size();
}

}  // namespace vrun::home
