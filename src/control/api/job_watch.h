// SPDX-License-Identifier: Apache-2.0
// Tells clients of GET /jobs/watch which jobs have changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "control/api/calls.h"
#include "control/api/input.h"
#include "http/message.h"

namespace vrun::control {

// State thread, all of it.
class JobWatch {
 public:
  struct Client {
    std::string viewer;  // as of InfoOf: what it may see
    Input input;         // whose filters choose the jobs
    std::shared_ptr<http::Events> events;
    std::function<bool()> may_go_on;  // asked every few seconds
  };

  // `loop` is the state thread's. Jobs become JSON on `work`. Both outlive this.
  JobWatch(EventLoop* loop, Calls* calls, WorkQueue* work);
  ~JobWatch();

  void Add(Client client);

 private:
  void Changed(const std::set<uint64_t>& jobs);
  void Tell();
  void Check();

  EventLoop* const loop_;
  Calls* const calls_;
  WorkQueue* const work_;
  std::vector<std::shared_ptr<Client>> clients_;
  std::set<uint64_t> changed_;
  EventLoop::TimerId tell_ = 0;   // armed while changed_ is not empty
  EventLoop::TimerId check_ = 0;  // armed while there are clients
};

}  // namespace vrun::control
