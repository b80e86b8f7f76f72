// SPDX-License-Identifier: Apache-2.0
// One connection of the command line: frames in, frames out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/message_socket.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. Owned by shared_ptr because an answer may come after the client has disconnected.
class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  struct Events {
    std::function<void(v1::ClientMessage, std::vector<UniqueFd>)> on_message;
    std::function<void()> on_closed;        // the client has disconnected; never called after Close
    std::function<void()> on_drained = {};  // everything queued is sent
  };

  ClientConnection(EventLoop* loop, UniqueFd socket, PeerCredentials peer);
  ~ClientConnection();

  void Start(Events events);
  // Replaces the handler of the conversation.
  void SetEvents(Events events) { events_ = std::move(events); }

  void Send(const v1::HomeMessage& message);
  void SendError(const Error& error);
  size_t queued_bytes() const { return writer_.queued_bytes(); }
  // Closes after everything queued is sent.
  void Close();

  bool open() const { return static_cast<bool>(socket_); }
  const PeerCredentials& peer() const { return peer_; }

 private:
  void OnReady(uint32_t events);
  void Flush();
  void Gone();

  EventLoop* const loop_;
  UniqueFd socket_;
  const PeerCredentials peer_;
  Events events_;
  FrameReader reader_;
  FrameWriter writer_;
  bool closing_ = false;
  bool wants_write_ = false;
};

}  // namespace vrun::home
