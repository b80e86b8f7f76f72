// SPDX-License-Identifier: Apache-2.0
// Home's end of published ports (RunSpec.ports): listens from the submission to the end of the job, and passes the
// connections on while the command runs and its node is connected. Others wait in the listener's queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "ports/port_relays.h"
#include "proto/common.pb.h"
#include "proto/task.pb.h"

namespace vrun::home {

// Loop thread only. Held by shared_ptr, so that a plan with it can be copied.
class PortForwards : public std::enable_shared_from_this<PortForwards> {
 public:
  using Ports = google::protobuf::RepeatedPtrField<v1::PublishedPort>;
  // Null for no ports. The error names the port that cannot be had.
  static Result<std::shared_ptr<PortForwards>> Listen(EventLoop* loop, const Ports& ports);
  ~PortForwards();

  // The command runs, and `send` reaches its node until Disconnected.
  void Connected(std::function<void(v1::PortFrame)> send);
  void Receive(v1::PortFrame frame);
  // The connections are broken off; new ones wait.
  void Disconnected();
  // The pod is over. What it has sent is still passed on, for at most kDrainMicros; new connections wait for the next.
  void Pause();
  // The job is over: nobody listens any more.
  void End();

 private:
  static constexpr int64_t kDrainMicros = 5'000'000;

  struct Listener {
    UniqueFd socket;
    uint32_t pod_port = 0;
    bool watched = false;
  };
  explicit PortForwards(EventLoop* loop);
  Status Add(const v1::PublishedPort& port);
  void Watch(bool on);
  void Accept(const Listener& listener);
  void Linger(int64_t until_micros);

  EventLoop* const loop_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::function<void(v1::PortFrame)> send_;  // null: not connected
  PortRelays relays_;
  uint64_t next_ = 1;
};

}  // namespace vrun::home
