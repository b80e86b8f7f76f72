// SPDX-License-Identifier: Apache-2.0
// Lets callbacks that arrive late find out that what they were for is gone, without keeping it alive.
//
// The owner holds a shared_ptr<Gate>, hands copies to callbacks and calls Close before it dies; a callback works only
// inside a pass. Close waits for passes that are held; so it must not be called from inside one.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

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
    std::unique_lock lock(mutex_);
    closed_ = true;
    empty_.wait(lock, [this] { return inside_ == 0; });
  }

 private:
  bool Enter() {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable empty_;
  int inside_ = 0;
  bool closed_ = false;
};

// `act` for a callback that may come late: it runs inside a pass, or not at all.
template <typename Act>
auto Guarded(std::shared_ptr<Gate> gate, Act act) {
  return [gate = std::move(gate), act = std::move(act)](auto&&... arguments) {
    const Gate::Pass pass(gate.get());
    if (pass) act(std::forward<decltype(arguments)>(arguments)...);
  };
}

}  // namespace vrun::vfs
