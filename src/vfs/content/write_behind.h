// SPDX-License-Identifier: Apache-2.0
// Writes to the store what readers already have in memory: files of up to 1 MiB that bursts bring, and small files that
// were fetched. (Parts of larger files are written as they come: there are few such files, and much of their content.)
// Creating a thousand files costs a cold import more than a second of a core while its process wants all of them, and
// delays a reader of one file until its file is created. A little later nobody waits. So writing begins when nothing
// has arrived for a moment, or when half of the memory is used.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "base/thread/mutex.h"

namespace vrun::vfs {

// Thread safety: any thread. One thread of its own at low priority, started with the first piece.
class WriteBehind {
 public:
  // `limit_bytes`: memory that waiting pieces may use.
  explicit WriteBehind(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  // Runs everything that was posted.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Runs in order of posting. False: the queue is full, and the caller must write by itself.
  bool Post(uint64_t bytes, std::function<void()> write);

 private:
  void Run();

  const uint64_t limit_bytes_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_ VRUN_GUARDED_BY(mutex_);
  int64_t posted_ VRUN_GUARDED_BY(mutex_) = 0;  // time of the last Post; monotonic microseconds
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace vrun::vfs
