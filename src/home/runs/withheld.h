// SPDX-License-Identifier: Apache-2.0
// Jobs whose writes are kept on their nodes because they could not be applied at home.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/io/event_loop.h"
#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/runs/run_files.h"

namespace vrun::home {

// Loop thread only.
class Withheld {
 public:
  // None is owned; all outlive it.
  Withheld(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const RunFiles* files);
  ~Withheld();
  // The user gives up the job's writes. False: none of that job are withheld.
  bool GiveUp(uint64_t job);

 private:
  class Release;

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const nodes_;
  const RunFiles* const files_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, std::unique_ptr<Release>> releases_;
};

}  // namespace vrun::home
