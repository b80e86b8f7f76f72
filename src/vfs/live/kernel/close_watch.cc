// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/kernel/close_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "vfs/fuse/node_handle.h"

namespace vrun::vfs {
namespace {

constexpr size_t kEvents = 128;    // read at once, each with a descriptor
constexpr size_t kMostOpen = 512;  // descriptors that wait to be closed

Error Unsupported(const std::string& what, int error_number) {
  return Error(Code::kUnsupported,
               "cannot watch for closed files (fanotify): " + what + ": " + std::strerror(error_number));
}

}  // namespace

Result<std::unique_ptr<CloseWatch>> CloseWatch::Create(int mount, Hooks hooks) {
  // An event pins the mount until it is read, which happens at once; so their number needs no limit.
  UniqueFd group(
      ::fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE, O_RDONLY | O_CLOEXEC));
  if (!group) return Unsupported("fanotify_init", errno);
  if (::fanotify_mark(group.get(), FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE, mount, ".") != 0) {
    return Unsupported("fanotify_mark", errno);
  }
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoError("eventfd");
  return std::unique_ptr<CloseWatch>(new CloseWatch(std::move(group), std::move(wake), std::move(hooks)));
}

Result<std::unique_ptr<CloseWatch>> CloseWatch::Start(int mount, Hooks hooks) {
  VRUN_ASSIGN(auto watch, Create(mount, std::move(hooks)));
  VRUN_TRY(watch->Try(mount));
  watch->thread_ = std::thread([self = watch.get()] { self->Run(); });
  return watch;
}

Result<std::unique_ptr<CloseWatch>> CloseWatch::Resume(int mount, Hooks hooks) {
  VRUN_ASSIGN(auto watch, Create(mount, std::move(hooks)));
  watch->thread_ = std::thread([self = watch.get()] { self->Run(); });
  return watch;
}

// This also makes later reads safe: reading an event opens its file. Once the kernel knows that it need not send opens,
// threads that answer requests may read events.
Status CloseWatch::Try(int mount) {
  uint64_t made = 0;
  {
    const UniqueFd nameless(::openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!nameless) return Unsupported("make a nameless file", errno);
    made = NodeOf(nameless.get());
    const std::string path = "/proc/self/fd/" + std::to_string(nameless.get());
    const UniqueFd again(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!again) return Unsupported("open a nameless file", errno);
  }
  bool told = false;
  const MutexLock lock(mutex_);
  while (ReadSome([&](uint64_t nodeid) { told = told || (nodeid == made && made != 0); })) {
  }
  seen_.clear();
  if (!told)
    return Error(Code::kUnsupported,
                 "cannot watch for closed files (fanotify): the kernel did not report a test close");
  return {};
}

CloseWatch::~CloseWatch() {
  if (!thread_.joinable()) return;
  stop_ = true;
  Wake();
  thread_.join();
}

void CloseWatch::Wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void CloseWatch::Run() {
  while (!stop_) {
    std::array<pollfd, 2> of{pollfd{group_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
    if (::poll(of.data(), of.size(), -1) < 0 && errno != EINTR) return;
    uint64_t woken = 0;
    if (of[1].revents != 0) (void)!::read(wake_.get(), &woken, sizeof woken);
    std::vector<UniqueFd> seen;  // closed after the lock
    const MutexLock lock(mutex_);
    DrainLocked();
    seen.swap(seen_);
  }
}

void CloseWatch::Drain() {
  const MutexLock lock(mutex_);
  const bool woken = !seen_.empty();
  DrainLocked();
  if (!woken && !seen_.empty()) Wake();
}

void CloseWatch::DrainLocked() {
  while (seen_.size() < kMostOpen && ReadSome(hooks_.closed)) {
  }
}

bool CloseWatch::ReadSome(const std::function<void(uint64_t nodeid)>& closed) {
  alignas(fanotify_event_metadata) std::array<char, kEvents * sizeof(fanotify_event_metadata)> events;
  const ssize_t n = ::read(group_.get(), events.data(), events.size());
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {  // drops the event that could not be read
    LogWarning("live view: close events are lost, so all files count as closed: {}",
               std::strerror(n < 0 ? errno : EIO));
    if (hooks_.missed) hooks_.missed();
    return n < 0;
  }
  uint64_t last = 0;
  for (ssize_t at = 0; at + static_cast<ssize_t>(sizeof(fanotify_event_metadata)) <= n;) {
    fanotify_event_metadata event;
    std::memcpy(&event, events.data() + at, sizeof event);
    if (event.event_len < sizeof event) break;
    at += event.event_len;
    if ((event.mask & FAN_Q_OVERFLOW) != 0 && hooks_.missed) hooks_.missed();
    if (event.fd < 0) continue;
    const uint64_t nodeid = NodeOf(event.fd);
    seen_.emplace_back(event.fd);
    if (nodeid != 0 && nodeid != last) closed(nodeid);
    last = nodeid;
  }
  return true;
}

}  // namespace vrun::vfs
