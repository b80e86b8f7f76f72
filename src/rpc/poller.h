// SPDX-License-Identifier: Apache-2.0
// A gRPC completion queue and the threads that wait on it. Not for other modules.
//
// Why not gRPC's callback API: in version 1.51 its threads sleep for 100 ms after a second without events, which delays
// a call after a pause. Also, its queue is destroyed by the last user, which may be one of its own threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/thread/mutex.h"
#include "rpc/internal.h"

namespace grpc {
class CompletionQueue;
}

namespace vrun::rpc {

// The tag of an operation; Complete runs on a poller's thread when the operation is over.
class Tag {
 public:
  virtual void Complete(bool ok) = 0;
  // Returns this, to pass to gRPC. Complete sees everything written before: gRPC guarantees it, and ThreadSanitizer,
  // which cannot see inside gRPC, is told.
  Tag* Arm() {
    TellSanitizerBefore(this);
    return this;
  }
  void Run(bool ok) {
    TellSanitizerAfter(this);
    Complete(ok);
  }

 protected:
  ~Tag() = default;
};

template <typename T, void (T::*Method)(bool)>
class MemberTag final : public Tag {
 public:
  explicit MemberTag(T* self) : self_(self) {}
  void Complete(bool ok) override { (self_->*Method)(ok); }

 private:
  T* const self_;
};

class Poller {
 public:
  Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads);
  // Waits for all operations; none may be started afterwards. Not on one of its own threads.
  ~Poller();
  grpc::CompletionQueue* queue() const { return queue_.get(); }
  bool OnThisThread() const;

 private:
  std::unique_ptr<grpc::CompletionQueue> queue_;
  std::vector<std::thread> threads_;
};

// A call that counts its operations: it is over, and deleted, when the last one has completed.
class CountedCall {
 public:
  virtual ~CountedCall() = default;
  // Makes the call end soon; only called while it is registered.
  virtual void Abort() = 0;

 protected:
  void Begin() { pending_.fetch_add(1, std::memory_order_relaxed); }
  void End() {
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) Over();
  }
  virtual void Over() = 0;

 private:
  std::atomic<int> pending_{0};
};

// The open calls, so that their owner can end them and wait.
class CallSet {
 public:
  void Add(CountedCall* call);
  void Remove(CountedCall* call);  // after its last callback
  void AbortAll();
  void AbortIf(const std::function<bool(const CountedCall*)>& which);
  void WaitEmpty();

 private:
  Mutex mu_;
  CondVar empty_;
  std::unordered_set<CountedCall*> calls_ VRUN_GUARDED_BY(mu_);
};

}  // namespace vrun::rpc
