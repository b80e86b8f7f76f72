// SPDX-License-Identifier: Apache-2.0
// One /vrun.v1.Node/Task stream from a home, handled on the agent's loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "proto/task.pb.h"
#include "rpc/rpc.h"

namespace vrun::node {

// Loop thread only, except the two overrides, which the RPC library calls. Shared by the agent's table of open streams
// and by the attempt to which it is attached.
class HomeStream : public rpc::Stream::Handler, public std::enable_shared_from_this<HomeStream> {
 public:
  struct Events {
    std::function<void(std::string frame)> on_frame;  // a TaskUp
    std::function<void()> on_closed;
  };

  HomeStream(EventLoop* loop, rpc::Peer peer, std::unique_ptr<rpc::Stream> stream)
      : loop_(loop), peer_(std::move(peer)), stream_(std::move(stream)) {}

  const rpc::Peer& peer() const { return peer_; }
  // Events go to the attempt attached last; before that, to the agent.
  void SetEvents(Events events) { events_ = std::move(events); }
  void Send(std::string frame) {
    if (open_) stream_->Send(std::move(frame));
  }
  void Send(const v1::TaskDown& message) { Send(message.SerializeAsString()); }
  // Sends home the error and ends the stream.
  void Fail(const Error& error);
  void Close();
  bool open() const { return open_; }

  void OnMessage(std::string message) override;
  void OnClosed(Error reason) override;

 private:
  EventLoop* loop_;
  rpc::Peer peer_;
  std::unique_ptr<rpc::Stream> stream_;
  Events events_;
  bool open_ = true;
};

}  // namespace vrun::node
