// SPDX-License-Identifier: Apache-2.0
#include "ports/port_relays.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace vrun {

v1::PortFrame PortRelays::FrameOf(uint64_t connection) const {
  v1::PortFrame frame;
  frame.set_connection(connection);
  return frame;
}

bool PortRelays::Expect(uint64_t connection) {
  if (connections_.size() >= kMostConnections) return false;
  connections_[connection];
  return true;
}

void PortRelays::Begin(uint64_t connection, UniqueFd socket) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;  // ended by the other side meanwhile
  SocketRelay::Events events;
  events.on_data = [this, connection](std::string data) {
    v1::PortFrame frame = FrameOf(connection);
    frame.set_data(std::move(data));
    send_(std::move(frame));
  };
  events.on_end = [this, connection] {
    v1::PortFrame frame = FrameOf(connection);
    frame.set_end(true);
    send_(std::move(frame));
  };
  events.on_passed = [this, connection](uint64_t n) {
    v1::PortFrame frame = FrameOf(connection);
    frame.set_passed(n);
    send_(std::move(frame));
  };
  events.on_over = [this, connection](const std::string& problem) {
    if (!problem.empty()) {
      v1::PortFrame frame = FrameOf(connection);
      frame.set_broken(problem);
      send_(std::move(frame));
    }
    Drop(connection, !problem.empty());
  };
  auto relay = std::make_unique<SocketRelay>(loop_, std::move(socket), std::move(events));
  SocketRelay* raw = relay.get();
  it->second.relay = std::move(relay);
  it->second.early_bytes = 0;
  for (v1::PortFrame& frame : std::exchange(it->second.early, {})) {
    if (!Has(connection)) return;
    Deliver(raw, std::move(frame));
  }
}

// Posted, because the relay may be on the stack.
void PortRelays::Drop(uint64_t connection, bool broken) {
  auto node = connections_.extract(connection);
  if (node.empty()) return;
  if (broken && node.mapped().relay) node.mapped().relay->Break();
  loop_->Post([relay = std::shared_ptr<SocketRelay>(std::move(node.mapped().relay))] {});
}

void PortRelays::Refuse(uint64_t connection, const std::string& why) {
  v1::PortFrame frame = FrameOf(connection);
  frame.set_broken(why);
  send_(std::move(frame));
  Drop(connection, true);
}

void PortRelays::Deliver(SocketRelay* relay, v1::PortFrame frame) {
  switch (frame.what_case()) {
    case v1::PortFrame::kData: return relay->Receive(std::move(*frame.mutable_data()));
    case v1::PortFrame::kEnd: return relay->ReceiveEnd();
    case v1::PortFrame::kPassed: return relay->Passed(frame.passed());
    default: return;
  }
}

void PortRelays::Receive(v1::PortFrame frame) {
  const auto it = connections_.find(frame.connection());
  if (it == connections_.end()) return;
  if (frame.what_case() == v1::PortFrame::kBroken) return Drop(frame.connection(), true);
  if (it->second.relay) return Deliver(it->second.relay.get(), std::move(frame));
  it->second.early_bytes += frame.data().size();
  if (it->second.early_bytes > SocketRelay::kWindow || it->second.early.size() > SocketRelay::kWindow) {
    return Refuse(frame.connection(), "more data than the window has room for");
  }
  it->second.early.push_back(std::move(frame));
}

void PortRelays::Clear() {
  while (!connections_.empty()) Drop(connections_.begin()->first, true);
}

void PortRelays::Finish() {
  while (!connections_.empty()) {
    const auto& [connection, state] = *connections_.begin();
    Drop(connection, !state.relay || !state.relay->write_ended());
  }
}

bool PortRelays::Reading() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& c) { return c.second.relay && c.second.relay->reading(); });
}

bool PortRelays::Writing() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& c) { return c.second.relay && c.second.relay->writing(); });
}

}  // namespace vrun
