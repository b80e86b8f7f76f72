// SPDX-License-Identifier: Apache-2.0
// Threads for what may block: disk reads and writes that must not hold up the event loop.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace vrun {

// A first-in first-out queue worked off by `threads` threads, which start with the first piece of work (most runs never
// need them). With one thread the pieces run one after the other in the order in which they were posted.
class WorkQueue {
 public:
  // `name` is what the threads are called in ps and top; at most 15 bytes.
  explicit WorkQueue(std::string name, unsigned threads = 1);
  ~WorkQueue();  // finishes the piece under way, drops the others
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Any thread. Nothing runs after Stop.
  void Post(std::function<void()> work);
  // Runs everything that was posted before, then ends the threads.
  void Drain();
  void Stop();

 private:
  void Run();

  const std::string name_;
  const unsigned limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_, like all below
  std::vector<std::thread> threads_;
  unsigned idle_ = 0;
  bool stopping_ = false;
};

}  // namespace vrun
