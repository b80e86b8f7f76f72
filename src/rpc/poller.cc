// SPDX-License-Identifier: Apache-2.0
#include "rpc/poller.h"

#include <grpcpp/completion_queue.h>
#include <pthread.h>

#include "base/result.h"

namespace vrun::rpc {

Poller::Poller(std::unique_ptr<grpc::CompletionQueue> queue, int threads) : queue_(std::move(queue)) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([queue = queue_.get()] {
      pthread_setname_np(pthread_self(), "rpc");
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) static_cast<Tag*>(tag)->Run(ok);
    });
  }
}

Poller::~Poller() {
  VRUN_CHECK(!OnThisThread());
  queue_->Shutdown();
  for (std::thread& t : threads_) t.join();
}

bool Poller::OnThisThread() const {
  for (const std::thread& t : threads_) {
    if (t.get_id() == std::this_thread::get_id()) return true;
  }
  return false;
}

void CallSet::Add(CountedCall* call) {
  MutexLock lock(mu_);
  calls_.insert(call);
}

void CallSet::Remove(CountedCall* call) {
  MutexLock lock(mu_);
  calls_.erase(call);
  if (calls_.empty()) empty_.notify_all();
}

void CallSet::AbortAll() {
  MutexLock lock(mu_);
  for (CountedCall* call : calls_) call->Abort();
}

void CallSet::AbortIf(const std::function<bool(const CountedCall*)>& which) {
  MutexLock lock(mu_);
  for (CountedCall* call : calls_) {
    if (which(call)) call->Abort();
  }
}

void CallSet::WaitEmpty() {
  MutexLock lock(mu_);
  empty_.wait(lock, [this]() VRUN_REQUIRES(mu_) { return calls_.empty(); });
}

}  // namespace vrun::rpc
