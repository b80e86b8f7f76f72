// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/home_news.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace vrun::vfs {
namespace {

// Runs once, for news or at the deadline; does nothing after that.
class NewsWaiter {
 public:
  NewsWaiter(std::shared_ptr<Gate> gate, std::function<void()> again)
      : gate_(std::move(gate)), again_(std::move(again)) {}
  void Run() {
    const Gate::Pass pass(gate_.get());
    if (!pass || done_.exchange(true)) return;
    const auto again = std::exchange(again_, nullptr);
    again();
  }

 private:
  const std::shared_ptr<Gate> gate_;
  std::atomic<bool> done_{false};
  std::function<void()> again_;
};

}  // namespace

HomeNews::Waiters HomeNews::ToldLocked() {
  MutexLock lock(mutex_);
  ++count_;
  return std::exchange(waiting_, {});
}

void HomeNews::After(uint64_t seen, int64_t deadline, std::function<void()> again) {
  {
    MutexLock lock(mutex_);
    if (count_ == seen) {
      const auto waiter = std::make_shared<NewsWaiter>(gate_, std::move(again));
      waiting_.push_back([waiter] { waiter->Run(); });
      // The timer keeps no part of the view alive.
      timers_.After(std::max<int64_t>(deadline - MonotonicMicros(), 0), [weak = std::weak_ptr(waiter)] {
        if (const auto late = weak.lock()) late->Run();
      });
      return;
    }
  }
  again();
}

}  // namespace vrun::vfs
