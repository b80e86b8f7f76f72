// SPDX-License-Identifier: Apache-2.0
// std::mutex, std::unique_lock and std::condition_variable with annotations, which those of libstdc++ lack. They cost
// nothing more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/thread/annotations.h"

namespace vrun {

class VRUN_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until it is destroyed, but for the time between unlock() and lock().
class VRUN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) VRUN_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() VRUN_RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() VRUN_ACQUIRE() { lock_.lock(); }
  void unlock() VRUN_RELEASE() { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// A predicate that reads what the mutex guards says so: `[this]() VRUN_REQUIRES(mutex_) { return done_; }`.
class CondVar {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  template <class Predicate>
  void wait(MutexLock& lock, Predicate predicate) {
    changed_.wait(lock.lock_, std::move(predicate));
  }
  template <class Rep, class Period>
  std::cv_status wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& time) {
    return changed_.wait_for(lock.lock_, time);
  }
  template <class Rep, class Period, class Predicate>
  bool wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& time, Predicate predicate) {
    return changed_.wait_for(lock.lock_, time, std::move(predicate));
  }
  template <class Clock, class Duration>
  std::cv_status wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time) {
    return changed_.wait_until(lock.lock_, time);
  }
  template <class Clock, class Duration, class Predicate>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time, Predicate predicate) {
    return changed_.wait_until(lock.lock_, time, std::move(predicate));
  }

 private:
  std::condition_variable changed_;
};

}  // namespace vrun
