// SPDX-License-Identifier: Apache-2.0
#include "vfs/timer_thread.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace vrun::vfs {

TimerThread::TimerThread() : thread_([this] { Run(); }) {}

TimerThread::~TimerThread() { Stop(); }

TimerThread::Id TimerThread::After(int64_t delay_micros, std::function<void()> task, bool expeditable) {
  const int64_t due = MonotonicMicros() + delay_micros;
  MutexLock lock(mutex_);
  const Id id = next_id_++;
  if (stopped_) return id;
  const auto it = tasks_.emplace(due, Task{id, expeditable, std::move(task)});
  by_id_.emplace(id, it);
  if (it == tasks_.begin()) wake_.notify_one();
  return id;
}

void TimerThread::Cancel(Id id) {
  std::function<void()> dropped;  // destroyed without the lock: it may own anything
  MutexLock lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  dropped = std::move(it->second->second.run);
  tasks_.erase(it->second);
  by_id_.erase(it);
}

void TimerThread::Expedite() {
  MutexLock lock(mutex_);
  std::vector<Task> early;
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    if (!it->second.expeditable) {
      ++it;
      continue;
    }
    early.push_back(std::move(it->second));
    it = tasks_.erase(it);
  }
  for (Task& task : early) {
    const Id id = task.id;
    by_id_[id] = tasks_.emplace(0, std::move(task));
  }
  wake_.notify_one();
}

void TimerThread::Stop() {
  std::multimap<int64_t, Task> dropped;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
    by_id_.clear();
    wake_.notify_one();
  }
  dropped.clear();
  if (thread_.joinable()) thread_.join();
}

void TimerThread::Run() {
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (tasks_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const int64_t wait = tasks_.begin()->first - MonotonicMicros();
    if (wait > 0) {
      wake_.wait_for(lock, std::chrono::microseconds(wait));
      continue;
    }
    std::function<void()> run = std::move(tasks_.begin()->second.run);
    by_id_.erase(tasks_.begin()->second.id);
    tasks_.erase(tasks_.begin());
    lock.unlock();
    run();
    run = nullptr;
    lock.lock();
  }
}

}  // namespace vrun::vfs
