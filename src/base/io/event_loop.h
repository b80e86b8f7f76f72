// SPDX-License-Identifier: Apache-2.0
// One epoll loop on one thread: descriptors, timers, signals, and functions posted from other threads.
//
// A daemon's state belongs to its loop's thread; other threads reach it through Post. Callbacks may add and remove
// anything, including themselves.
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

  // Loop thread. The caller keeps the descriptor; Remove it before closing it. EPERM (regular files) is an error.
  Status Add(int fd, uint32_t events, FdCallback callback);
  void Modify(int fd, uint32_t events);
  void Remove(int fd);

  // Loop thread. Runs once, `delay_micros` from now (monotonic).
  TimerId After(int64_t delay_micros, std::function<void()> callback);
  void Cancel(TimerId id);

  // Any thread: runs `work` on the loop, in the order of posting.
  void Post(std::function<void()> work);

  // Blocks this signal in the calling thread and delivers it as a callback (signalfd). Call before threads start.
  Status OnSignal(int signal, std::function<void(int)> callback);

  // Runs until Stop. Stop may be called from any thread.
  void Run();
  void Stop();
  // One iteration: waits at most `timeout_ms` (-1: no limit) and runs what is due.
  void RunOnce(int timeout_ms);
  bool stopped() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vrun
