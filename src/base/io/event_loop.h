// SPDX-License-Identifier: Apache-2.0
// One epoll loop on one thread: descriptors, timers, signals, and work posted from other threads.
//
// Everything that a daemon owns lives on its loop's thread; other threads reach it by Post. Callbacks may add and
// remove anything, themselves included.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"

namespace vrun {

class EventLoop {
 public:
  using FdCallback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR
  using TimerId = uint64_t;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Loop thread. The descriptor stays the caller's; Remove it before closing it. EPERM (regular files) is an error.
  Status Add(int fd, uint32_t events, FdCallback callback);
  void Modify(int fd, uint32_t events);
  void Remove(int fd);

  // Loop thread. Runs once, `delay_micros` from now (monotonic).
  TimerId After(int64_t delay_micros, std::function<void()> callback);
  void Cancel(TimerId id);

  // Any thread: runs `work` on the loop, in order of posting.
  void Post(std::function<void()> work);

  // Blocks these signals in the calling thread and delivers them as callbacks (signalfd). Call before threads start.
  Status OnSignal(int signal, std::function<void(int)> callback);

  // Runs until Stop. Stop: any thread.
  void Run();
  void Stop();
  // One turn: waits at most `timeout_ms` (-1: for ever) and runs what is due.
  void RunOnce(int timeout_ms);
  bool stopped() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vrun
