// SPDX-License-Identifier: Apache-2.0
#include "node/limits/disk_limit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::node {
namespace {

constexpr int64_t kShortestPauseMs = 200;
constexpr int64_t kPauseFactor = 10;
// One descriptor each. Whoever nests deeper hides something: it counts as too much.
constexpr size_t kDeepest = 512;

struct Sum {
  uint64_t bytes = 0;
  const uint64_t enough;
  dev_t device = 0;
  std::set<ino_t> linked;  // with several names
};

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

// `fd` is given away.
void AddBelow(int fd, size_t depth, Sum* sum) {
  if (depth > kDeepest) {
    ::close(fd);
    sum->bytes = UINT64_MAX;
    return;
  }
  const Directory directory(::fdopendir(fd), ::closedir);
  if (!directory) {
    ::close(fd);
    return;
  }
  while (sum->bytes <= sum->enough) {
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) return;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat st;
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0) continue;
    if (st.st_dev != sum->device) continue;
    if (S_ISDIR(st.st_mode) || st.st_nlink < 2 || sum->linked.insert(st.st_ino).second) {
      sum->bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
    if (!S_ISDIR(st.st_mode)) continue;
    const int below =
        ::openat(::dirfd(directory.get()), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below >= 0) AddBelow(below, depth + 1, sum);
  }
}

// In the child. Only what it needs is open.
[[noreturn]] void Watch(const std::vector<int>& directories, uint64_t limit, int told) {
  for (;;) {
    const int64_t began = MonotonicMicros();
    if (BytesBelow(directories, limit) > limit) {
      [[maybe_unused]] const ssize_t n = ::write(told, "x", 1);
      ::_exit(0);
    }
    const int64_t took_ms = (MonotonicMicros() - began) / 1000;
    ::poll(nullptr, 0,
           static_cast<int>(std::min<int64_t>(std::max(kShortestPauseMs, took_ms * kPauseFactor), 600'000)));
  }
}

}  // namespace

uint64_t BytesBelow(const std::vector<int>& directories, uint64_t enough) {
  uint64_t bytes = 0;
  for (const int directory : directories) {
    Sum sum{0, enough - std::min(bytes, enough), 0, {}};
    struct stat st;
    const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) continue;
    if (::fstat(fd, &st) != 0) {
      ::close(fd);
      continue;
    }
    sum.device = st.st_dev;
    AddBelow(fd, 0, &sum);
    bytes = sum.bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + sum.bytes;
    if (bytes > enough) break;
  }
  return bytes;
}

Status DiskLimit::Start(const std::vector<std::string>& directories, uint64_t limit, std::function<void()> exceeded) {
  std::vector<UniqueFd> open;
  std::vector<int> numbers;
  for (const std::string& path : directories) {
    Result<UniqueFd> fd = OpenFile(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!fd && fd.error().error_number() == ENOENT) continue;
    if (!fd) return std::move(fd).error();
    numbers.push_back(fd->get());
    open.push_back(*std::move(fd));
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoError("pipe");
  told_.Reset(ends[0]);
  const UniqueFd telling(ends[1]);
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ < 0) return ErrnoError("fork");
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::prctl(PR_SET_NAME, "vrun-disk");
    ::setpriority(PRIO_PROCESS, 0, 10);
    // The pipes of the command must end when it and the supervisor close them.
    std::vector<int> keep = numbers;
    keep.push_back(telling.get());
    std::sort(keep.begin(), keep.end());
    unsigned from = 0;
    for (const int fd : keep) {
      if (static_cast<unsigned>(fd) > from) ::syscall(SYS_close_range, from, static_cast<unsigned>(fd) - 1, 0u);
      from = static_cast<unsigned>(fd) + 1;
    }
    ::syscall(SYS_close_range, from, ~0u, 0u);
    Watch(numbers, limit, telling.get());
  }
  return loop_->Add(told_.get(), EPOLLIN, [this, exceeded = std::move(exceeded)](uint32_t) {
    char byte;
    const bool told = ::read(told_.get(), &byte, 1) == 1;
    loop_->Remove(told_.get());
    told_.Reset();
    if (told) exceeded();
  });
}

void DiskLimit::Stop() {
  if (told_) loop_->Remove(told_.get());
  told_.Reset();
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
}

}  // namespace vrun::node
