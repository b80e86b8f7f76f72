// SPDX-License-Identifier: Apache-2.0
// Threads for blocking work: disk reads and writes that must not block the event loop.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"

namespace vrun {

// A FIFO queue served by `threads` threads, which start with the first item (most runs never need them). With one
// thread, items run one after the other in the order of posting.
class WorkQueue {
 public:
  // `name` is the threads' name in ps and top; at most 15 bytes.
  explicit WorkQueue(std::string name, unsigned threads = 1);
  ~WorkQueue();  // finishes the current item, drops the others
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Any thread. Nothing runs after Stop.
  void Post(std::function<void()> work);
  // Runs everything posted before, then stops the threads.
  void Drain();
  void Stop();

 private:
  void Run();

  const std::string name_;
  const unsigned limit_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> work_ VRUN_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
  unsigned idle_ VRUN_GUARDED_BY(mutex_) = 0;
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun
