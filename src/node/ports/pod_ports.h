// SPDX-License-Identifier: Apache-2.0
// The node's end of connections to published ports (RunSpec.ports): home opens them, they go on at the pod's localhost.
//
//   open ─▶ the pod's init makes a socket and connects (127.0.0.1, then ::1) ─▶ relay ─▶ both ends closed, or broken
//
// Only ports that the job has published are connected to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "ports/port_relays.h"
#include "proto/common.pb.h"
#include "proto/task.pb.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

// Loop thread only.
class PodPorts {
 public:
  struct Events {
    std::function<void(v1::PortFrame)> send;  // to home, if it is attached
    std::function<void()> on_drained;         // after End: Drained() is true from now on
  };
  PodPorts(EventLoop* loop, Events events);
  ~PodPorts();

  // The command runs. Both outlive this or the call of End.
  void Begin(const v1::RunSpec* run, sandbox::Sandbox* sandbox);
  void OnFrame(v1::PortFrame frame);
  // After Sandbox::ReadControl.
  void OnControl();
  // Home has attached (again): it knows nothing of earlier connections.
  void Reset();
  // All processes of the pod are dead. What they had sent still goes home, for at most kDrainMicros.
  void End();
  bool Drained() const { return drained_ || !relays_.Reading(); }

 private:
  static constexpr int64_t kDrainMicros = 3'000'000;

  // A connection without a relay yet.
  struct Pending {
    uint64_t connection = 0;
    uint16_t port = 0;
    bool version6 = false;
    UniqueFd socket;  // connecting
  };
  void Ask(int32_t number);
  void OnConnected(int32_t number);
  void Failed(int32_t number, int error);
  void Forget(int32_t number);
  bool Published(uint32_t port) const;

  EventLoop* const loop_;
  const Events events_;
  PortRelays relays_;
  const v1::RunSpec* run_ = nullptr;
  sandbox::Sandbox* sandbox_ = nullptr;  // null: not begun, or ended
  std::map<int32_t, Pending> pending_;
  int32_t next_ = 1;
  bool ended_ = false, drained_ = false;
  EventLoop::TimerId drain_timer_ = 0;
};

}  // namespace vrun::node
