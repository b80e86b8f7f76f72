// SPDX-License-Identifier: Apache-2.0
// The supervisor's end of one connection to the agent: frames in, frames out. Loop thread only.
#pragma once

#include <functional>
#include <string_view>

#include "base/io/event_loop.h"
#include "base/io/frame_socket.h"
#include "base/unique_fd.h"

namespace vrun::node {

class TaskConnection {
 public:
  struct Events {
    std::function<void(Frame)> on_frame;
    std::function<void()> on_writable;  // room() again
    // The other side is gone or broke the protocol. The last call; it may destroy the connection.
    std::function<void()> on_closed;
  };
  // Above this much in the queue nothing more is put into it: what waits belongs into the windows.
  static constexpr size_t kQueue = 2u << 20;

  TaskConnection(EventLoop* loop, UniqueFd socket, Events events);
  ~TaskConnection();

  void Send(std::string frame);
  bool room() const { return writer_.queued_bytes() < kQueue; }
  // Waits until all is sent, for the last words of a supervisor that goes.
  void SendRest();

 private:
  void OnReady(uint32_t events);
  void Flush();

  EventLoop* loop_;
  UniqueFd socket_;
  Events events_;
  FrameReader reader_;
  FrameWriter writer_;
  bool wants_write_ = false;
};

}  // namespace vrun::node
