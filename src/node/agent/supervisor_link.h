// SPDX-License-Identifier: Apache-2.0
// The agent's side of one task supervisor (vrund-task): its process and its frames (proto/task.proto).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
#include "base/result.h"
#include "node/child_process.h"

namespace vrun::node {

// Loop thread only. The supervisor outlives this object: destroying the link only closes the connection.
class SupervisorLink {
 public:
  struct Events {
    std::function<void(std::string frame)> on_frame;  // a TaskDown
    std::function<void()> on_closed;                  // last call; the supervisor is gone or broke the protocol
  };

  // Starts a supervisor that waits for its TaskSpec. Started in advance, because exec takes about a millisecond.
  static Result<std::unique_ptr<SupervisorLink>> Start(EventLoop* loop);
  // Connects to a supervisor of an earlier agent, through the socket in its task directory.
  static Result<std::unique_ptr<SupervisorLink>> Adopt(EventLoop* loop, const std::string& socket_path);
  ~SupervisorLink();

  bool alive() const { return static_cast<bool>(socket_); }
  void SetEvents(Events events);
  void Send(std::string frame);
  // Only the TaskSpec carries descriptors.
  void Send(std::string frame, std::vector<UniqueFd> fds);

  // Sends SIGTERM to the peer process: it kills its task, writes the record and exits.
  void Kill();

 private:
  SupervisorLink(EventLoop* loop, UniqueFd socket) : loop_(loop), socket_(std::move(socket)) {}
  Status Watch();
  void OnReady(uint32_t events);
  void Close();

  EventLoop* loop_;
  UniqueFd socket_;
  std::unique_ptr<ChildProcess> child_;  // null when adopted
  FrameReader reader_;
  FrameWriter writer_;
  bool writing_ = false;
  Events events_;
};

}  // namespace vrun::node
