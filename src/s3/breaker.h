// SPDX-License-Identifier: Apache-2.0
// Decides when to stop using a store for a while. Pure decisions; the caller provides the time. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread/mutex.h"

namespace vrun::s3 {

// Opens after kFailures consecutive failures: blocks requests for a while, twice as long each time. Then it admits one
// request, whose result decides.
class Breaker {
 public:
  static constexpr int kFailures = 4;
  static constexpr int64_t kFirstPauseMicros = 2'000'000;
  static constexpr int64_t kLongestPauseMicros = 60'000'000;

  // Whether to send a request now. After true, the caller must call exactly one of Succeeded, Failed and Dropped.
  bool Allow(int64_t now) {
    MutexLock lock(mutex_);
    if (failures_ < kFailures) return true;
    if (now < closed_until_ || probing_) return false;
    probing_ = true;
    return true;
  }
  // The store answered, even if only that an object is missing.
  void Succeeded() {
    MutexLock lock(mutex_);
    failures_ = 0;
    pause_ = kFirstPauseMicros;
    probing_ = false;
  }
  void Failed(int64_t now) {
    MutexLock lock(mutex_);
    probing_ = false;
    CountLocked(now);
  }
  // Reports a failure of a request still in progress: one of the three calls must still follow.
  void Late(int64_t now) {
    MutexLock lock(mutex_);
    CountLocked(now);
  }
  // The request was never sent, or its failure has been counted.
  void Dropped() {
    MutexLock lock(mutex_);
    probing_ = false;
  }
  // Whether requests are blocked now, also while the result of the one admitted request is pending.
  bool open(int64_t now) const {
    MutexLock lock(mutex_);
    return failures_ >= kFailures && (now < closed_until_ || probing_);
  }

 private:
  void CountLocked(int64_t now) VRUN_REQUIRES(mutex_) {
    if (failures_ < kFailures && ++failures_ < kFailures) return;
    // Results of requests sent before it opened carry no news.
    if (now < closed_until_) return;
    closed_until_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLongestPauseMicros);
  }

  mutable Mutex mutex_;
  int failures_ VRUN_GUARDED_BY(mutex_) = 0;
  int64_t pause_ VRUN_GUARDED_BY(mutex_) = kFirstPauseMicros;
  int64_t closed_until_ VRUN_GUARDED_BY(mutex_) = 0;
  bool probing_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun::s3
