// SPDX-License-Identifier: Apache-2.0
// One end of a connection whose other end is on another machine: a connected socket as pieces of bytes, with flow
// control in both directions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

// Loop thread only.
class SocketRelay {
 public:
  // Bytes in one direction that were sent to the other end and not passed on there.
  static constexpr uint64_t kWindow = 512u << 10;

  struct Events {
    std::function<void(std::string)> on_data;   // read from the socket
    std::function<void()> on_end;               // its peer sends no more
    std::function<void(uint64_t n)> on_passed;  // so many more received bytes were written to it
    // Last call; it may destroy the relay. "": both directions have ended. Otherwise the connection is broken.
    std::function<void(const std::string& problem)> on_over;
  };
  // `socket`: connected and non-blocking.
  SocketRelay(EventLoop* loop, UniqueFd socket, Events events);
  ~SocketRelay();
  SocketRelay(const SocketRelay&) = delete;
  SocketRelay& operator=(const SocketRelay&) = delete;

  // From the other end. Each may call on_over.
  void Receive(std::string data);
  void ReceiveEnd();
  void Passed(uint64_t n);
  // The socket's peer will see a reset, not an end.
  void Break();
  bool reading() const { return !read_ended_; }
  bool writing() const { return !queue_.empty(); }
  bool write_ended() const { return write_ended_; }

 private:
  void OnReady(uint32_t ready);
  bool Read();   // false: it is over
  bool Write();  // the same
  void Watch();
  void Unwatch();
  void Over(const std::string& problem);
  bool MayRead() const { return !read_ended_ && unpassed_ < kWindow; }

  EventLoop* const loop_;
  UniqueFd socket_;
  Events events_;
  uint32_t watched_ = 0;           // the events; 0: not in the loop, which would report a hang-up again and again
  std::deque<std::string> queue_;  // received, not written
  size_t first_written_ = 0;       // bytes of queue_[0]
  uint64_t queued_ = 0;
  uint64_t unpassed_ = 0;
  bool read_ended_ = false;
  bool write_ends_ = false;  // after the queue
  bool write_ended_ = false;
};

}  // namespace vrun
