// SPDX-License-Identifier: Apache-2.0
// The names that home hides from jobs (keys, credentials), whether or not they exist: they are in no tree, and a
// program that asks for one finds nothing. This recognizes them, so that home can tell its user what was missed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/secrets/hidden_names.h"
#include "base/thread/mutex.h"

namespace vrun::vfs {

// Any thread.
class Withheld {
 public:
  // What home hides now, instead of what it has hidden before.
  void Set(HiddenNames names);
  // `asked` is told the path of each such name that a program asks for. It must not call this. Set before the first
  // view.
  void OnAsked(std::function<void(const std::string& path)> asked) { asked_ = std::move(asked); }

  // Of a name that a directory does not have. False, which is nearly always so: it is none of them. Allocates nothing.
  bool MayBe(std::string_view name) const {
    MutexLock lock(mutex_);
    return names_.MayHave(name);
  }
  // A program has asked for this path, which is absent. True: it is one of them, so that absence must not be cached by
  // the kernel, where the next job would ask. Home is told of each at most every kAgainMicros.
  bool Asked(const std::string& path);

 private:
  static constexpr int64_t kAgainMicros = 100'000;

  std::function<void(const std::string&)> asked_;
  mutable Mutex mutex_;
  HiddenNames names_ VRUN_GUARDED_BY(mutex_);
  std::vector<int64_t> told_us_ VRUN_GUARDED_BY(mutex_);  // monotonic, of each; 0: never
};

}  // namespace vrun::vfs
