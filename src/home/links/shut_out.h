// SPDX-License-Identifier: Apache-2.0
// Asks the controller now and then who was shut out, while there are connections to nodes, and ends those to such
// nodes.
#pragma once

#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "home/links/controller_client.h"
#include "home/links/node_links.h"

namespace vrun::home {

// Loop thread.
class ShutOutFollower {
 public:
  // All outlive it.
  ShutOutFollower(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes);
  ~ShutOutFollower();
  // Where the list is kept: the directory of the certificate.
  void Use(const std::string& directory) { directory_ = directory; }

 private:
  void Wait();
  void Ask();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const nodes_;
  std::string directory_;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace vrun::home
