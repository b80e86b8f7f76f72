// SPDX-License-Identifier: Apache-2.0
// Whether home is silent, so that what a live view shows may not be what home has. decisions/0021.
//
// In doubt every name, listing and attribute is asked for before it is used (the kernel keeps none of them), and each
// such request asks home first: one question at a time, the answer to which is that home speaks again, and doubt is
// over. A home that does not answer in time is not asked again for a while; meanwhile the view answers by itself.
//
// It also notes which names the kernel was told not to be there, so that it can be told to ask again. A live view's
// journal has them, too: the kernel remembers them longer than a server lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "vfs/timer_thread.h"

namespace vrun::vfs {

// Any thread. What is given to After runs on the caller's thread, the timers' or the one that ends the doubt, no lock
// held.
class LiveDoubt {
 public:
  static constexpr int64_t kAnswerMicros = 250'000;        // how long a request waits for home
  static constexpr int64_t kUnansweredMicros = 2'000'000;  // from a question without an answer to the next
  static constexpr size_t kMostAbsent = 65'536;

  // `ask`: has home say what it has now; must not block. `timers` must outlive it.
  LiveDoubt(TimerThread* timers, std::function<void()> ask);

  bool doubted() const { return doubted_.load(std::memory_order_relaxed); }
  void Begin();
  void End();
  // Home has spoken: whoever waits for it goes on.
  void Answered();
  // Runs `then` at once where there is no doubt, or home has not answered lately; else after the answer, or when there
  // is none in time. Once. `waits` is called before, when it has to wait.
  void After(const std::function<void()>& waits, std::function<void()> then);

  // The kernel is told that there is no such name. kFull: too many were noted, it is to ask again soon.
  enum class Noted { kNew, kBefore, kFull };
  Noted NoteAbsent(uint64_t directory, std::string_view name);
  using Names = std::vector<std::pair<uint64_t, std::string>>;
  Names absent() const;
  Names TakeAbsent();

 private:
  struct Question {
    std::mutex mutex;
    bool over = false;
    std::vector<std::function<void()>> waiting;
  };
  Names AbsentLocked() const;
  static bool Close(Question& question);  // true: it was open, and its waiters have gone on

  TimerThread* const timers_;
  const std::function<void()> ask_;
  std::atomic<bool> doubted_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Question> question_;  // the last one; guarded by mutex_, as all below
  int64_t asked_ = 0;                   // monotonic
  std::unordered_map<uint64_t, std::unordered_set<std::string>> absent_;
  size_t absent_count_ = 0;
};

}  // namespace vrun::vfs
