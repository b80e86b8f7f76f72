// SPDX-License-Identifier: Apache-2.0
#include "home/root/watch/watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "home/root/watch/watch_events.h"

namespace vrun::home {
namespace {

constexpr size_t kMaxNamesPerDirectory = 256;  // above this, listing the directory again is as cheap
constexpr size_t kMaxDirectories = 50000;      // above this, scanning everything is as cheap
constexpr size_t kMaxInodes = 250000;          // copying a tree by hard links causes that many; 10 MB
constexpr int kBatchMillis = 20;               // events are read at most that often without a barrier
constexpr int kListenedMillis = 2;             // while there is a listener
constexpr int kBatchesPerRound = 64;
constexpr std::string_view kCookiePrefix = "vrun-cookie-";

class RescanWatcher : public Watcher {
 public:
  explicit RescanWatcher(std::string reason) : reason_(std::move(reason)) {}
  Result<tree::DirtySet> Barrier(std::chrono::milliseconds) override {
    tree::DirtySet dirty;
    dirty.recursive.insert("/");
    return dirty;
  }
  void Listen(std::function<void()>) override {}
  std::string_view kind() const override { return "rescan"; }
  std::string reason() const override { return reason_; }

 private:
  const std::string reason_;
};

}  // namespace

bool DirtyLog::Room() {
  if (everything_) return false;
  if (dirty_.names.size() + dirty_.directories.size() + dirty_.recursive.size() < kMaxDirectories) return true;
  Everything();
  return false;
}

void DirtyLog::Name(const std::string& directory, std::string_view name) {
  if (everything_ || (name == last_name_ && directory == last_directory_)) return;
  if (!Room()) return;
  last_directory_ = directory;
  last_name_ = name;
  if (dirty_.directories.contains(directory)) return;
  auto& names = dirty_.names[directory];
  names.emplace(name);
  if (names.size() > kMaxNamesPerDirectory) {
    dirty_.directories.insert(directory);
    dirty_.names.erase(directory);
  }
}

void DirtyLog::Own(const std::string& directory) {
  if (Room() && !dirty_.directories.contains(directory)) dirty_.names[directory];
}

void DirtyLog::Recursive(const std::string& path) {
  if (Room()) dirty_.recursive.insert(path);
}

void DirtyLog::Inode(uint64_t ino) {
  if (everything_) return;
  dirty_.inodes.insert(ino);
  if (dirty_.inodes.size() > kMaxInodes) Everything();
}

void DirtyLog::Everything() {
  everything_ = true;
  dirty_ = {};
}

tree::DirtySet DirtyLog::Take() {
  tree::DirtySet out = std::move(dirty_);
  if (everything_) out.recursive.insert("/");
  *this = DirtyLog();
  return out;
}

Cookie::~Cookie() {
  if (file_) ::unlink((directory_ + "/" + name_).c_str());
}

Status Cookie::Open(const std::string& directory) {
  VRUN_TRY(MakeDirs(directory, 0700));
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = file.path().filename();
    if (!name.starts_with(kCookiePrefix)) continue;
    const long pid = std::strtol(name.c_str() + kCookiePrefix.size(), nullptr, 10);
    if (pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) ::unlink(file.path().c_str());
  }
  directory_ = directory;
  name_ = std::string(kCookiePrefix) + std::to_string(::getpid()) + "-" + std::to_string(MonotonicMicros());
  VRUN_ASSIGN(file_, OpenFile(directory_ + "/" + name_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  return {};
}

bool Cookie::Change() {
  if (!file_) return false;
  ++value_;
  // Overwrites the same byte, so it needs no space after the first time. A full or read-only file system may still
  // accept a time stamp.
  return ::pwrite(file_.get(), &value_, 1, 0) == 1 || ::futimens(file_.get(), nullptr) == 0;
}

EventWatcher::EventWatcher(WatchOptions options)
    : options_(std::move(options)), rules_(options_.scan.hollow, options_.scan.hidden) {}

EventWatcher::~EventWatcher() { StopThread(); }

Status EventWatcher::Prepare() {
  char* real = ::realpath(options_.scan.root.c_str(), nullptr);
  if (real == nullptr) return ErrnoError("watch " + Escape(options_.scan.root));
  root_ = real;
  ::free(real);
  VRUN_ASSIGN(root_fd_, OpenFile(root_, O_RDONLY | O_DIRECTORY));
  // Opened before it is read, so that a mount in between is announced.
  VRUN_ASSIGN(mountinfo_, OpenFile("/proc/self/mountinfo", O_RDONLY));
  VRUN_ASSIGN(mounts_, tree::MountTable::Read(root_));
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return ErrnoError("eventfd");
  if (!options_.cookie_directory.empty()) {
    if (auto status = cookie_.Open(options_.cookie_directory); !status) {
      LogWarning("watch: no cookie file: {}", status.error().message());
    }
  }
  return {};
}

void EventWatcher::StartThread() {
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    // Then only barriers read the queue: correct, but with more to read at once.
    LogWarning("watch: cannot start a thread, events are read only at barriers: {}", error.what());
  }
}

void EventWatcher::StopThread() {
  stop_ = true;
  if (!thread_.joinable()) return;
  Wake();
  thread_.join();
}

void EventWatcher::Wake() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

bool EventWatcher::OverflowIsDue() { return ++events_ == options_.simulate_overflow_after; }

// Called only by a barrier: a poll consumes the announcement, so two threads would steal it from each other. A new
// mount need not be watched before that: the barrier that finds it reports all of it as dirty.
void EventWatcher::CheckMounts() {
  struct pollfd changed {
    mountinfo_.get(), POLLPRI, 0
  };
  if (::poll(&changed, 1, 0) <= 0 || !(changed.revents & (POLLPRI | POLLERR))) return;
  auto table = tree::MountTable::Read(root_);
  if (!table) {
    LogWarning("watch: {}", table.error().message());
    return log_.Everything();
  }
  if (table->mounts() == mounts_.mounts()) return;
  const tree::MountTable old_table = std::exchange(mounts_, *std::move(table));
  auto missing = [](const tree::Mount& mount, const tree::MountTable& in) {
    return std::find(in.mounts().begin(), in.mounts().end(), mount) == in.mounts().end();
  };
  for (const tree::Mount& mount : mounts_.mounts()) {
    if (missing(mount, old_table) && !rules_.Excludes(mount.point)) log_.Recursive(mount.point);
  }
  for (const tree::Mount& mount : old_table.mounts()) {
    if (missing(mount, mounts_) && !rules_.Excludes(mount.point)) log_.Recursive(mount.point);
  }
  MountsChanged(old_table);
}

Result<tree::DirtySet> EventWatcher::Barrier(std::chrono::milliseconds timeout) {
  const int64_t deadline = MonotonicMicros() + timeout.count() * 1000;
  MutexLock lock(mutex_);
  CheckMounts();
  cookie_seen_ = false;
  const bool expected = !blind_ && cookie_.Change();
  while (!blind_) {
    // The kernel queues an event before the call that causes it returns, so everything that precedes the cookie is here
    // already.
    while (ReadBatch() && !cookie_seen_) {
    }
    if (!expected || cookie_seen_) break;
    const int64_t left = deadline - MonotonicMicros();
    struct pollfd more {
      queue(), POLLIN, 0
    };
    if (left <= 0 || ::poll(&more, 1, static_cast<int>((left + 999) / 1000)) == 0) {
      LogWarning("watch: no event for the cookie file within {} ms; reading the whole root again", timeout.count());
      log_.Everything();
      break;
    }
  }
  if (blind_) log_.Everything();
  told_ = false;
  return log_.Take();
}

void EventWatcher::Listen(std::function<void()> changed) {
  {
    MutexLock listening(listen_mutex_);
    changed_ = std::move(changed);
    listened_ = changed_ != nullptr;
  }
  Wake();
}

void EventWatcher::Loop() {
  while (!stop_) {
    int fd;
    {
      MutexLock lock(mutex_);
      fd = blind_ ? -1 : queue();
    }
    struct pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {fd, POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
      continue;
    }
    bool changed = false;
    {
      MutexLock lock(mutex_);
      for (int i = 0; i < kBatchesPerRound && !blind_ && ReadBatch(); ++i) {
      }
      changed = listened_ && !log_.empty() && !std::exchange(told_, true);
    }
    if (changed) {
      MutexLock listening(listen_mutex_);
      if (changed_) changed_();
    }
    // Pause: meanwhile the kernel merges the events of a busy writer, and does not wake us for each.
    ::poll(polled, 1, listened_ ? kListenedMillis : kBatchMillis);
  }
}

Result<std::unique_ptr<Watcher>> Watcher::Start(WatchOptions options) {
  using Backend = WatchOptions::Backend;
  if (options.backend == Backend::kRescan) return std::make_unique<RescanWatcher>("asked for");
  if (options.backend == Backend::kFanotify) return StartFanotify(options);
  if (options.backend == Backend::kInotify) return StartInotify(options, "asked for");
  auto best = StartFanotify(options);
  if (best) return best;
  const std::string reason = best.error().message();
  auto second = StartInotify(options, reason);
  if (second) return second;
  LogWarning("watch: no change events, each command reads the whole root again: {}", second.error().message());
  return std::make_unique<RescanWatcher>(reason + "; " + second.error().message());
}

}  // namespace vrun::home
