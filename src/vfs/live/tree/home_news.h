// SPDX-License-Identifier: Apache-2.0
// Signals that home has sent news: a tree or an acknowledgement. If home no longer has some content, a newer version
// exists and home will announce it in a moment; a request that needs it waits here.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {

class HomeNews {
 public:
  using Waiters = std::vector<std::function<void()>>;
  // How long to wait for home to publish the replacement of a version that is gone. The replacement may be our own
  // write, which home announces once it is on its disk: seconds if that disk is busy.
  static constexpr int64_t kMicros = 30'000'000;

  // `timers` must outlive it.
  HomeNews(TimerThread& timers, std::shared_ptr<Gate> gate) : timers_(timers), gate_(std::move(gate)) {}

  // Number of news so far. Read under the tree's lock, it matches the state of the tree.
  uint64_t count() const { return count_.load(); }
  // Runs `again` once count() exceeds `seen`, or at the deadline (monotonic microseconds).
  void After(uint64_t seen, int64_t deadline, std::function<void()> again);
  // Home has sent news; with the tree's lock held. Call the returned functions without the lock.
  [[nodiscard]] Waiters ToldLocked();

 private:
  TimerThread& timers_;
  const std::shared_ptr<Gate> gate_;
  Mutex mutex_;
  std::atomic<uint64_t> count_{0};  // changed under mutex_
  Waiters waiting_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::vfs
