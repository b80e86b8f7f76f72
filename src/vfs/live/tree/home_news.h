// SPDX-License-Identifier: Apache-2.0
// Says when home has told something: a tree, or an acknowledgement. What home does not have any more it has otherwise,
// and tells in a moment; whoever needs it waits for that.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "vfs/gate.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {

class HomeNews {
 public:
  using Waiters = std::vector<std::function<void()>>;
  // How long a request waits for home to tell what there is instead of what it has not any more. What is instead may be
  // our own, of which home tells once it is on its disk: seconds, where that is busy.
  static constexpr int64_t kMicros = 30'000'000;

  // `timers` must outlive it.
  HomeNews(TimerThread& timers, std::shared_ptr<Gate> gate) : timers_(timers), gate_(std::move(gate)) {}

  // How often home has told something. Read with the tree's lock it goes with what the tree has.
  uint64_t count() const { return count_.load(); }
  // Runs `again` once there is more than `seen`, or at the deadline (monotonic microseconds).
  void After(uint64_t seen, int64_t deadline, std::function<void()> again);
  // Home has told something; with the tree's lock held. Returned: to be called without it.
  [[nodiscard]] Waiters ToldLocked();

 private:
  TimerThread& timers_;
  const std::shared_ptr<Gate> gate_;
  std::mutex mutex_;
  std::atomic<uint64_t> count_{0};  // changed under it
  Waiters waiting_;
};

}  // namespace vrun::vfs
