// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/grown_files.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/copy_content.h"

namespace vrun::home {
namespace {

// We may append while we copy, for one job after the other; each flush takes its time.
constexpr int64_t kGrowingMicros = 3'000'000, kSoonMicros = 500'000;
constexpr std::chrono::milliseconds kPause(4);

tree::FileVersion VersionOf(const struct stat& st) {
  return {st.st_dev, st.st_ino, ToNanos(st.st_ctim), static_cast<uint64_t>(st.st_size)};
}

Result<UniqueFd> CopyBeginning(int from, uint64_t size) {
  UniqueFd copy(::memfd_create("vrun-old-content", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!copy) return ErrnoError("memory for old content");
  VRUN_ASSIGN(const uint64_t copied, CopyContent(from, copy.get(), size));
  if (copied < size) return Error(Code::kAborted, "the file has become shorter");
  if (::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoError("seal old content");
  }
  return copy;
}

}  // namespace

void GrownFiles::Grew(const struct stat& before, const struct stat& after) {
  const tree::FileVersion was = VersionOf(before), is = VersionOf(after);
  if (was.ino != is.ino || was.dev != is.dev || is.size < was.size) return;
  MutexLock lock(mutex_);
  if (versions_.size() >= kMostFiles && !versions_.contains({is.dev, is.ino})) versions_.clear();
  std::deque<tree::FileVersion>& versions = versions_[{is.dev, is.ino}];
  // Somebody else has changed it since: what is known of it is no beginning any more.
  if (versions.empty() || versions.back() != was) versions.assign(1, was);
  if (is != was) versions.push_back(is);
  if (versions.size() > kMostVersions) versions.pop_front();
}

GrownFiles::Known GrownFiles::Newest(const tree::FileVersion& version, tree::FileVersion* newest) const {
  MutexLock lock(mutex_);
  const auto it = versions_.find({version.dev, version.ino});
  if (it == versions_.end()) return Known::kNot;
  // The first that is no older, and the one before it: a state between the two is one of the appending itself, for the
  // kernel gives a file its new times before its new size.
  const auto after = std::find_if(it->second.begin(), it->second.end(), [&](const tree::FileVersion& known) {
    return known.ctime_ns >= version.ctime_ns && known.size >= version.size;
  });
  const tree::FileVersion& last = it->second.back();
  if (after == it->second.end()) {
    return version.ctime_ns >= last.ctime_ns && version.size >= last.size ? Known::kSoon : Known::kNot;
  }
  if (*after != version) {
    if (after == it->second.begin()) return Known::kNot;
    const tree::FileVersion& before = *std::prev(after);
    if (before.ctime_ns > version.ctime_ns || before.size > version.size) return Known::kNot;
  }
  *newest = last;
  return Known::kYes;
}

Result<UniqueFd> GrownFiles::Open(const ContentFiles& root, std::string_view path,
                                  const tree::FileVersion& version) const {
  Error error(Code::kAborted, Escape(path) + ": changed at home after the job's tree was taken");
  if (version.size > kMostBytes) return error;
  tree::FileVersion newest;
  for (const int64_t began = MonotonicMicros();; std::this_thread::sleep_for(kPause)) {
    const Known known = Newest(version, &newest);
    const int64_t passed = MonotonicMicros() - began;
    if (known == Known::kNot || passed > (known == Known::kSoon ? kSoonMicros : kGrowingMicros)) return error;
    if (known == Known::kSoon) continue;
    auto file = root.OpenVersion(path, newest);
    if (!file) continue;  // it is growing
    auto copy = CopyBeginning(file->get(), version.size);
    if (copy && root.Check(file->get(), path, newest)) return copy;
  }
}

bool GrownFiles::IsCopy(int fd, const tree::FileVersion& version) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat st {};
  return seals >= 0 && (seals & F_SEAL_WRITE) != 0 && ::fstat(fd, &st) == 0 &&
         static_cast<uint64_t>(st.st_size) == version.size;
}

}  // namespace vrun::home
