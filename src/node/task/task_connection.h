// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of one agent connection: frames in, frames out. Loop thread only.
#pragma once

#include <functional>
#include <string_view>

#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
#include "base/unique_fd.h"

namespace vrun::node {

class TaskConnection {
 public:
  struct Events {
    std::function<void(Frame)> on_frame;
    std::function<void()> on_writable;  // room() is true again
    // The peer is gone or broke the protocol. The last call; it may destroy the connection.
    std::function<void()> on_closed;
  };
  // Above this size nothing is added to the queue: further data stays in the windows.
  static constexpr size_t kQueue = 2u << 20;

  TaskConnection(EventLoop* loop, UniqueFd socket, Events events);
  ~TaskConnection();

  void Send(std::string frame);
  bool room() const { return writer_.queued_bytes() < kQueue; }
  // Blocks until all is sent, for the last messages of a supervisor that exits.
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
