// SPDX-License-Identifier: Apache-2.0
// When to leave a store alone. Pure decisions; the caller brings the clock. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace vrun::s3 {

// Opens after kFailures failures in a row: nothing is asked for a while, twice as long each time. Then one request is
// let through, whose fate decides.
class Breaker {
 public:
  static constexpr int kFailures = 4;
  static constexpr int64_t kFirstPauseMicros = 2'000'000;
  static constexpr int64_t kLongestPauseMicros = 60'000'000;

  // Whether to ask now. After true exactly one of Succeeded, Failed and Dropped is owed.
  bool Allow(int64_t now) {
    std::lock_guard lock(mutex_);
    if (failures_ < kFailures) return true;
    if (now < closed_until_ || probing_) return false;
    probing_ = true;
    return true;
  }
  // The store answered, if only that it has not got something.
  void Succeeded() {
    std::lock_guard lock(mutex_);
    failures_ = 0;
    pause_ = kFirstPauseMicros;
    probing_ = false;
  }
  void Failed(int64_t now) {
    std::lock_guard lock(mutex_);
    probing_ = false;
    CountLocked(now);
  }
  // A failure too, of what is still under way: one of the three is still owed.
  void Late(int64_t now) {
    std::lock_guard lock(mutex_);
    CountLocked(now);
  }
  // It was never asked, or its failure has been counted.
  void Dropped() {
    std::lock_guard lock(mutex_);
    probing_ = false;
  }
  // Nothing is asked now; also while the fate of the one request is not known.
  bool open(int64_t now) const {
    std::lock_guard lock(mutex_);
    return failures_ >= kFailures && (now < closed_until_ || probing_);
  }

 private:
  void CountLocked(int64_t now) {
    if (failures_ < kFailures && ++failures_ < kFailures) return;
    // What was under way when it opened says nothing new.
    if (now < closed_until_) return;
    closed_until_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLongestPauseMicros);
  }

  mutable std::mutex mutex_;
  int failures_ = 0;
  int64_t pause_ = kFirstPauseMicros;
  int64_t closed_until_ = 0;
  bool probing_ = false;
};

}  // namespace vrun::s3
