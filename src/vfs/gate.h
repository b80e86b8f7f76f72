// SPDX-License-Identifier: Apache-2.0
// Lets a late callback detect that its owner is gone, without keeping the owner alive.
//
// The owner holds a shared_ptr<Gate>, gives copies to callbacks and calls Close before it is destroyed. A callback
// works only inside a pass. Close waits until no pass is held, so it must not be called from inside a pass.
#pragma once

#include <memory>
#include <utility>

#include "base/thread/mutex.h"

namespace vrun::vfs {

class Gate {
 public:
  class Pass {
   public:
    explicit Pass(Gate* gate) : gate_(gate && gate->Enter() ? gate : nullptr) {}
    ~Pass() {
      if (gate_) gate_->Leave();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_;
  };

  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    empty_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return inside_ == 0; });
  }

 private:
  bool Enter() {
    MutexLock lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void Leave() {
    MutexLock lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }

  Mutex mutex_;
  CondVar empty_;
  int inside_ VRUN_GUARDED_BY(mutex_) = 0;
  bool closed_ VRUN_GUARDED_BY(mutex_) = false;
};

// Wraps `act` for a callback that may come late: it runs inside a pass, or not at all.
template <typename Act>
auto Guarded(std::shared_ptr<Gate> gate, Act act) {
  return [gate = std::move(gate), act = std::move(act)](auto&&... arguments) {
    const Gate::Pass pass(gate.get());
    if (pass) act(std::forward<decltype(arguments)>(arguments)...);
  };
}

}  // namespace vrun::vfs
