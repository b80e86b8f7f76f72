// SPDX-License-Identifier: Apache-2.0
// The agent's only stream to the controller: registration and heartbeats, orders down, reports up. Reconnects forever.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "proto/control.pb.h"
#include "rpc/rpc.h"

namespace vrun::node {

// Loop thread only; callbacks on the loop.
class ControllerLink {
 public:
  struct Events {
    // Called at every connection. Returns the agent's description and all its attempts.
    std::function<v1::Register()> describe;
    std::function<void(const v1::ControllerMessage&)> on_message;
    std::function<void()> on_registered;
  };
  static Result<std::unique_ptr<ControllerLink>> Start(EventLoop* loop, const std::string& address,
                                                       const rpc::Credentials& credentials, Events events);
  ~ControllerLink();
  // Dropped while disconnected: the next registration repeats everything.
  void Send(const v1::AgentMessage& message);
  bool registered() const;

 private:
  struct Impl;
  explicit ControllerLink(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace vrun::node
