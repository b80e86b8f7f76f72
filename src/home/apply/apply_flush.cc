// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_flush.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/io/work_queue.h"
#include "tree/scan/mounts.h"

namespace vrun::home {
namespace {

constexpr size_t kMostInodes = 4096;
// What a disk writes in the time of one more fsync. docs/decisions/0021.
constexpr uint64_t kBytesPerInode = 32u << 10;
// Concurrent fsyncs share the disk's cache flushes.
constexpr unsigned kThreads = 8;

// Limit of files held open: enough for a flush on a slow disk, and at most an eighth of the descriptors.
size_t MostInodes() {
  rlimit limit{1024, 1024};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(kMostInodes, limit.rlim_cur / 8);
}

uint64_t Kilobytes(std::string_view meminfo, std::string_view name) {
  const size_t at = meminfo.find(name);
  return at == std::string_view::npos ? 0 : std::strtoull(meminfo.data() + at + name.size(), nullptr, 10);
}

Status FsyncAll(const std::vector<int>& fds) {
  std::atomic<int> error = 0;
  const auto sync = [&error](int fd) {
    if (::fsync(fd) != 0 && errno != EINVAL) error = errno;
  };
  if (fds.size() < kThreads) {
    for (const int fd : fds) sync(fd);
  } else {
    WorkQueue queue("flush", kThreads);
    for (const int fd : fds) queue.Post([&sync, fd] { sync(fd); });
    queue.Drain();
  }
  if (error != 0) return ErrnoError(error, "flush what the job wrote");
  return {};
}

// Flushes each local file system. Not sync(2), which waits for every mount of the machine: a hanging one would block
// everybody.
bool FlushLocalFileSystems() {
  const auto text = ReadFile("/proc/self/mountinfo");
  const auto mounts = text ? tree::MountTable::Parse(*text, "/") : Result<tree::MountTable>(text.error());
  if (!mounts) return false;
  bool all = true;
  for (const tree::Mount& mount : mounts->mounts()) {
    if (!mount.included) continue;
    const UniqueFd fd(::open(mount.point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd && errno == ENOTDIR) continue;  // a file that is itself a mount point
    all = fd && ::syncfs(fd.get()) == 0 && all;
  }
  return all;
}

}  // namespace

uint64_t BytesNotOnDisk() {
  const auto meminfo = ReadFile("/proc/meminfo");
  if (!meminfo) return UINT64_MAX;
  return (Kilobytes(*meminfo, "\nDirty:") + Kilobytes(*meminfo, "\nWriteback:")) << 10;
}

bool FlushWhole(size_t inodes, uint64_t bytes_not_on_disk) { return bytes_not_on_disk <= inodes * kBytesPerInode; }

ApplyFlush::ApplyFlush() : most_(MostInodes()) {}

void ApplyFlush::Touched(int parent, UniqueFd file) {
  if (!file) return Add(parent, UniqueFd());
  // A file that is open for writing cannot be executed.
  UniqueFd readable(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable) return TouchedMuch(parent);
  Add(parent, std::move(readable));
}

void ApplyFlush::Add(int parent, UniqueFd file) {
  if (files_.size() + directories_.size() >= most_) return TouchedMuch(parent);
  if (file) files_.push_back(std::move(file));
  if (!AddDirectory(parent)) everywhere_ = true;  // a directory that may be written but not read
}

void ApplyFlush::TouchedAttributes(int parent, const std::string& name) {
  struct stat st {};
  const bool opens =
      ::fstatat(parent, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
  UniqueFd file(opens ? ::openat(parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1);
  if (!file) return TouchedMuch(parent);
  Add(parent, std::move(file));
}

void ApplyFlush::TouchedMuch(int parent) {
  much_ = true;
  files_.clear();
  if (!AddDirectory(parent)) everywhere_ = true;
}

bool ApplyFlush::AddDirectory(int directory) {
  struct stat st {};
  if (::fstat(directory, &st) != 0) return false;
  if (much_) {
    const auto same_device = directories_.lower_bound({st.st_dev, 0});
    if (same_device != directories_.end() && same_device->first.first == st.st_dev) return true;
  }
  const auto [at, fresh] = directories_.try_emplace({st.st_dev, st.st_ino});
  if (!fresh) return true;
  at->second.Reset(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at->second) return true;
  directories_.erase(at);
  return false;
}

Status ApplyFlush::Flush() {
  if (everywhere_ && !FlushLocalFileSystems()) ::sync();
  const size_t inodes = files_.size() + directories_.size();
  if (inodes > 0) VRUN_TRY(much_ || FlushWhole(inodes, BytesNotOnDisk()) ? FlushFileSystems() : FlushInodes());
  *this = ApplyFlush();
  return {};
}

Status ApplyFlush::FlushFileSystems() {
  std::optional<dev_t> last;
  for (const auto& [inode, fd] : directories_) {
    if (std::exchange(last, inode.first) == inode.first) continue;
    if (::syncfs(fd.get()) != 0) return ErrnoError("flush what the job wrote");
  }
  return {};
}

Status ApplyFlush::FlushInodes() {
  std::vector<int> files, directories;
  for (const UniqueFd& fd : files_) files.push_back(fd.get());
  for (const auto& [inode, fd] : directories_) directories.push_back(fd.get());
  // Start writing all before waiting for the first: they then share one commit of the file system's journal.
  for (const int fd : files) ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
  VRUN_TRY(FsyncAll(files));
  return FsyncAll(directories);
}

}  // namespace vrun::home
