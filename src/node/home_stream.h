// SPDX-License-Identifier: Apache-2.0
// One /vrun.v1.Node/Task stream of a home, brought onto the agent's loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "proto/task.pb.h"
#include "rpc/rpc.h"

namespace vrun::node {

// Loop thread only, but for the two overrides, which gRPC calls. Shared by the agent's table of open streams and by the
// attempt that it is attached to.
class HomeStream : public rpc::Stream::Handler, public std::enable_shared_from_this<HomeStream> {
 public:
  struct Events {
    std::function<void(std::string frame)> on_frame;  // a TaskUp
    std::function<void()> on_closed;
  };

  HomeStream(EventLoop* loop, rpc::Peer peer, std::unique_ptr<rpc::Stream> stream)
      : loop_(loop), peer_(std::move(peer)), stream_(std::move(stream)) {}

  const rpc::Peer& peer() const { return peer_; }
  // Whoever is attached last hears the stream; before that the agent does.
  void SetEvents(Events events) { events_ = std::move(events); }
  void Send(std::string frame) {
    if (open_) stream_->Send(std::move(frame));
  }
  void Send(const v1::TaskDown& message) { Send(message.SerializeAsString()); }
  // Tells home why and ends the stream.
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
