// SPDX-License-Identifier: Apache-2.0
// The connections to the published ports of one pod, on either side of the stream between home and node. Home accepts
// them and opens; the node connects to the pod's localhost. Both then have a relay for each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "ports/socket_relay.h"
#include "proto/task.pb.h"

namespace vrun {

// Loop thread only.
class PortRelays {
 public:
  static constexpr size_t kMostConnections = 512;

  // `send` must not call back.
  PortRelays(EventLoop* loop, std::function<void(v1::PortFrame)> send) : loop_(loop), send_(std::move(send)) {}
  ~PortRelays() { Clear(); }

  // The connection has a socket, connected and non-blocking; what came for it meanwhile is written.
  void Begin(uint64_t connection, UniqueFd socket);
  // What comes for this connection is kept until Begin. False: too many connections.
  bool Expect(uint64_t connection);
  // Tells the other side that there is no such connection (any more).
  void Refuse(uint64_t connection, const std::string& why);
  // Everything but `open`. Frames of unknown connections are dropped: they have ended on this side.
  void Receive(v1::PortFrame frame);
  // Breaks all off, and tells nobody: the other side is gone.
  void Clear();
  // The same, but a socket that has got everything, and the end, is closed as usual.
  void Finish();

  bool Has(uint64_t connection) const { return connections_.contains(connection); }
  size_t size() const { return connections_.size(); }
  // Some socket may still be read.
  bool Reading() const;
  // Some socket has not taken all that it was sent.
  bool Writing() const;

 private:
  struct Connection {
    std::unique_ptr<SocketRelay> relay;  // null: expected
    std::vector<v1::PortFrame> early;
    uint64_t early_bytes = 0;
  };
  v1::PortFrame FrameOf(uint64_t connection) const;
  void Deliver(SocketRelay* relay, v1::PortFrame frame);
  void Drop(uint64_t connection, bool broken);

  EventLoop* const loop_;
  const std::function<void(v1::PortFrame)> send_;
  std::map<uint64_t, Connection> connections_;
};

}  // namespace vrun
