// SPDX-License-Identifier: Apache-2.0
#include "base/io/work_queue.h"

#include <pthread.h>

namespace vrun {

WorkQueue::WorkQueue(std::string name, unsigned threads) : name_(name.substr(0, 15)), limit_(threads) {}

WorkQueue::~WorkQueue() { Stop(); }

void WorkQueue::Post(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    work_.push_back(std::move(work));
    if (idle_ < work_.size() && threads_.size() < limit_) threads_.emplace_back([this] { Run(); });
  }
  wake_.notify_one();
}

void WorkQueue::Drain() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& t : threads) t.join();
}

void WorkQueue::Stop() {
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock
  {
    MutexLock lock(mutex_);
    dropped.swap(work_);
  }
  Drain();
}

void WorkQueue::Run() {
  ::pthread_setname_np(::pthread_self(), name_.c_str());
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_ || !work_.empty(); });
    --idle_;
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace vrun
