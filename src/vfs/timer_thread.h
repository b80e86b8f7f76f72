// SPDX-License-Identifier: Apache-2.0
// One thread that runs work later: retries, deadlines, and work that a thread reading /dev/fuse should not wait for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "base/thread/mutex.h"

namespace vrun::vfs {

// Thread safety: any thread. Do not call the destructor or Stop from a task.
class TimerThread {
 public:
  using Id = uint64_t;
  TimerThread();
  ~TimerThread();
  TimerThread(const TimerThread&) = delete;
  TimerThread& operator=(const TimerThread&) = delete;

  // Runs `task` on the thread, `delay_micros` from now (monotonic). Expedite runs an expeditable task early.
  Id After(int64_t delay_micros, std::function<void()> task, bool expeditable = false);
  // Drops a task that has not started. Does not wait for a running one.
  void Cancel(Id id);
  void Expedite();
  // Drops all tasks that have not started, and joins.
  void Stop();

 private:
  struct Task {
    Id id;
    bool expeditable;
    std::function<void()> run;
  };
  void Run();

  Mutex mutex_;
  CondVar wake_;
  std::multimap<int64_t, Task> tasks_ VRUN_GUARDED_BY(mutex_);  // by due time
  std::map<Id, std::multimap<int64_t, Task>::iterator> by_id_ VRUN_GUARDED_BY(mutex_);
  Id next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  bool stopped_ VRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace vrun::vfs
