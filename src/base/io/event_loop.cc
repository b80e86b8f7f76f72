// SPDX-License-Identifier: Apache-2.0
#include "base/io/event_loop.h"

#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun {

struct EventLoop::Impl {
  struct Watch {
    std::shared_ptr<FdCallback> callback;
    uint64_t generation;  // distinguishes a new registration of a reused descriptor number from an event of the old one
  };
  UniqueFd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  UniqueFd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unordered_map<int, Watch> watches;
  uint64_t generation = 0;

  std::map<std::pair<int64_t, TimerId>, std::function<void()>> timers;
  std::unordered_map<TimerId, int64_t> due;
  TimerId next_timer = 1;

  UniqueFd signals;
  sigset_t mask;
  std::unordered_map<int, std::function<void(int)>> on_signal;

  Mutex mutex;
  std::vector<std::function<void()>> posted VRUN_GUARDED_BY(mutex);
  std::atomic<bool> stop{false};

  void RunPosted() {
    std::vector<std::function<void()>> work;
    {
      MutexLock lock(mutex);
      work.swap(posted);
    }
    for (auto& w : work) w();
  }

  void RunTimers() {
    int64_t now = MonotonicMicros();
    while (!timers.empty() && timers.begin()->first.first <= now) {
      auto node = timers.extract(timers.begin());
      due.erase(node.key().second);
      node.mapped()();
    }
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (::read(signals.get(), &info, sizeof info) == sizeof info) {
      auto it = on_signal.find(static_cast<int>(info.ssi_signo));
      if (it != on_signal.end()) it->second(it->first);
    }
  }
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {
  VRUN_CHECK(impl_->epoll && impl_->wake);
  sigemptyset(&impl_->mask);
  Impl* impl = impl_.get();
  Status added = Add(impl->wake.get(), EPOLLIN, [impl](uint32_t) {
    uint64_t n;
    [[maybe_unused]] ssize_t r = ::read(impl->wake.get(), &n, sizeof n);
  });
  VRUN_CHECK(added.has_value());
}

EventLoop::~EventLoop() = default;

Status EventLoop::Add(int fd, uint32_t events, FdCallback callback) {
  uint64_t generation = ++impl_->generation;
  epoll_event e{};
  e.events = events;
  // The low half is the descriptor, the high half its registration.
  e.data.u64 = static_cast<uint64_t>(static_cast<uint32_t>(fd)) | generation << 32;
  if (::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, fd, &e) != 0) return ErrnoError("epoll add");
  impl_->watches[fd] = {std::make_shared<FdCallback>(std::move(callback)), generation & 0xffffffffu};
  return {};
}

void EventLoop::Modify(int fd, uint32_t events) {
  auto it = impl_->watches.find(fd);
  if (it == impl_->watches.end()) return;
  epoll_event e{};
  e.events = events;
  e.data.u64 = static_cast<uint64_t>(static_cast<uint32_t>(fd)) | it->second.generation << 32;
  ::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_MOD, fd, &e);
}

void EventLoop::Remove(int fd) {
  if (impl_->watches.erase(fd) > 0) ::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::After(int64_t delay_micros, std::function<void()> callback) {
  TimerId id = impl_->next_timer++;
  int64_t when = MonotonicMicros() + delay_micros;
  impl_->timers.emplace(std::pair(when, id), std::move(callback));
  impl_->due[id] = when;
  return id;
}

void EventLoop::Cancel(TimerId id) {
  auto it = impl_->due.find(id);
  if (it == impl_->due.end()) return;
  impl_->timers.erase({it->second, id});
  impl_->due.erase(it);
}

void EventLoop::Post(std::function<void()> work) {
  bool first;
  {
    MutexLock lock(impl_->mutex);
    first = impl_->posted.empty();
    impl_->posted.push_back(std::move(work));
  }
  if (!first) return;  // the loop has already been woken
  uint64_t one = 1;
  [[maybe_unused]] ssize_t r = ::write(impl_->wake.get(), &one, sizeof one);
}

Status EventLoop::OnSignal(int signal, std::function<void(int)> callback) {
  sigaddset(&impl_->mask, signal);
  if (pthread_sigmask(SIG_BLOCK, &impl_->mask, nullptr) != 0) return ErrnoError("sigmask");
  int fd = ::signalfd(impl_->signals.get(), &impl_->mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoError("signalfd");
  impl_->on_signal[signal] = std::move(callback);
  if (impl_->signals) return {};
  impl_->signals.Reset(fd);
  Impl* impl = impl_.get();
  return Add(fd, EPOLLIN, [impl](uint32_t) { impl->ReadSignals(); });
}

namespace {

// epoll_wait with a timeout in microseconds (Linux 5.11; on older kernels, or where a sandbox blocks the call, rounded
// to milliseconds). Negative: no timeout.
int Wait(int epoll, std::span<epoll_event> events, int64_t timeout_micros) {
  const int most = static_cast<int>(events.size());
  static std::atomic<bool> unknown = false;
  if (timeout_micros > 0 && !unknown.load(std::memory_order_relaxed)) {
    const timespec timeout = {.tv_sec = timeout_micros / 1'000'000, .tv_nsec = timeout_micros % 1'000'000 * 1000};
    const int n = ::epoll_pwait2(epoll, events.data(), most, &timeout, nullptr);
    if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n;
    unknown.store(true, std::memory_order_relaxed);
  }
  const int ms = timeout_micros < 0 ? -1 : static_cast<int>(std::min<int64_t>((timeout_micros + 999) / 1000, 1 << 30));
  return ::epoll_wait(epoll, events.data(), most, ms);
}

}  // namespace

void EventLoop::RunOnce(int timeout_ms) {
  Impl& s = *impl_;
  int64_t timeout_micros = int64_t{timeout_ms} * 1000;  // negative: no timeout
  if (!s.timers.empty()) {
    const int64_t left = std::max<int64_t>(s.timers.begin()->first.first - MonotonicMicros(), 0);
    if (timeout_micros < 0 || left < timeout_micros) timeout_micros = left;
  }
  epoll_event events[64];
  const int n = Wait(s.epoll.get(), events, timeout_micros);
  for (int i = 0; i < n; ++i) {
    int fd = static_cast<int>(static_cast<uint32_t>(events[i].data.u64));
    auto it = s.watches.find(fd);
    if (it == s.watches.end() || it->second.generation != events[i].data.u64 >> 32) continue;
    // This reference keeps it alive: the callback may Remove itself.
    std::shared_ptr<FdCallback> callback = it->second.callback;
    (*callback)(events[i].events);
  }
  s.RunPosted();
  s.RunTimers();
}

void EventLoop::Run() {
  while (!impl_->stop.load(std::memory_order_acquire)) RunOnce(-1);
}

void EventLoop::Stop() {
  impl_->stop.store(true, std::memory_order_release);
  Post([] {});
}

bool EventLoop::stopped() const { return impl_->stop.load(std::memory_order_acquire); }

}  // namespace vrun
