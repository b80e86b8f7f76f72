// SPDX-License-Identifier: Apache-2.0
// Tracks whether home is silent, so that the view may be out of date. decisions/0021.
//
// In doubt every name, listing and attribute is requested before use (the kernel caches none of them), and each such
// request asks home first. One question is open at a time. If home answers, doubt is over. If home does not answer in
// time, it is not asked again for a while; meanwhile the view answers from its own state.
//
// It also notes for which names the kernel was told that they do not exist, so that they can be invalidated. A live
// view's journal has them, too: the kernel caches them longer than a server lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {

// Any thread. Callbacks given to After run on the caller's thread, the timer thread or the thread that ends the doubt,
// with no lock held.
class LiveDoubt {
 public:
  static constexpr int64_t kAnswerMicros = 250'000;        // how long a request waits for home
  static constexpr int64_t kUnansweredMicros = 2'000'000;  // from an unanswered question to the next one
  static constexpr size_t kMostAbsent = 65'536;

  // `ask` requests home's current state; must not block. `timers` must outlive it.
  LiveDoubt(TimerThread* timers, std::function<void()> ask);

  bool doubted() const { return doubted_.load(std::memory_order_relaxed); }
  void Begin();
  void End();
  // Home has spoken: waiting requests continue.
  void Answered();
  // Runs `then` once: immediately if there is no doubt or home has not answered lately; otherwise after the answer or
  // its timeout. Calls `waits` first if it has to wait.
  void After(const std::function<void()>& waits, std::function<void()> then);

  // Notes that the kernel is told that the name does not exist. kFull: too many were noted, so the kernel must ask
  // again soon.
  enum class Noted { kNew, kBefore, kFull };
  Noted NoteAbsent(uint64_t directory, std::string_view name);
  using Names = std::vector<std::pair<uint64_t, std::string>>;
  Names absent() const;
  Names TakeAbsent();
  Names TakeAbsentIn(uint64_t directory);

 private:
  struct Question {
    Mutex mutex;
    bool over VRUN_GUARDED_BY(mutex) = false;
    std::vector<std::function<void()>> waiting VRUN_GUARDED_BY(mutex);
  };
  Names AbsentLocked() const VRUN_REQUIRES(mutex_);
  static bool Close(Question& question);  // true: it was open, and its waiters have continued

  TimerThread* const timers_;
  const std::function<void()> ask_;
  std::atomic<bool> doubted_{false};
  mutable Mutex mutex_;
  std::shared_ptr<Question> question_ VRUN_GUARDED_BY(mutex_);  // the latest one
  int64_t asked_ VRUN_GUARDED_BY(mutex_) = 0;                   // monotonic
  std::unordered_map<uint64_t, std::unordered_set<std::string>> absent_ VRUN_GUARDED_BY(mutex_);
  size_t absent_count_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::vfs
