// SPDX-License-Identifier: Apache-2.0
#include "node/ports/pod_ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace vrun::node {

PodPorts::PodPorts(EventLoop* loop, Events events)
    : loop_(loop), events_(std::move(events)), relays_(loop, [this](v1::PortFrame frame) {
        events_.send(std::move(frame));
        if (ended_) End();
      }) {}

PodPorts::~PodPorts() {
  loop_->Cancel(drain_timer_);
  while (!pending_.empty()) Forget(pending_.begin()->first);
}

void PodPorts::Begin(const v1::RunSpec* run, sandbox::Sandbox* sandbox) {
  run_ = run;
  sandbox_ = sandbox;
}

bool PodPorts::Published(uint32_t port) const {
  return std::any_of(run_->ports().begin(), run_->ports().end(),
                     [port](const v1::PublishedPort& p) { return p.pod_port() == port; });
}

void PodPorts::OnFrame(v1::PortFrame frame) {
  if (frame.what_case() != v1::PortFrame::kOpen) {
    relays_.Receive(std::move(frame));
    if (ended_) End();  // it may have been the last
    return;
  }
  const uint64_t connection = frame.connection();
  if (sandbox_ == nullptr) return relays_.Refuse(connection, "the command does not run");
  if (!Published(frame.open())) return relays_.Refuse(connection, "the job has not published this port");
  if (relays_.Has(connection)) return relays_.Refuse(connection, "a connection with this number exists");
  if (!relays_.Expect(connection)) return relays_.Refuse(connection, "too many connections");
  const int32_t number = next_++;
  pending_[number] = {connection, static_cast<uint16_t>(frame.open()), false, UniqueFd()};
  Ask(number);
}

void PodPorts::Ask(int32_t number) {
  const Pending& pending = pending_[number];
  const Status asked = sandbox_ == nullptr ? Status(Error(Code::kAborted, "the command has ended"))
                                           : sandbox_->Connect(number, pending.port, pending.version6);
  if (asked) return;
  relays_.Refuse(pending.connection, asked.error().message());
  Forget(number);
}

void PodPorts::OnControl() {
  if (sandbox_ == nullptr) return;
  for (sandbox::Connection& made : sandbox_->TakeConnections()) {
    const auto it = pending_.find(made.number);
    if (it == pending_.end()) continue;
    if (made.error != 0) {
      Failed(made.number, made.error);
      continue;
    }
    it->second.socket = std::move(made.socket);
    const int32_t number = made.number;
    const Status added =
        loop_->Add(it->second.socket.get(), EPOLLOUT, [this, number](uint32_t) { OnConnected(number); });
    if (!added) {
      it->second.socket.Reset();
      Failed(number, ENOMEM);
    }
  }
}

void PodPorts::OnConnected(int32_t number) {
  Pending& pending = pending_[number];
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(pending.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  loop_->Remove(pending.socket.get());
  UniqueFd socket = std::move(pending.socket);
  if (error != 0) return Failed(number, error);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t connection = pending.connection;
  Forget(number);
  relays_.Begin(connection, std::move(socket));
}

// Some servers listen on one of the two addresses of localhost only.
void PodPorts::Failed(int32_t number, int error) {
  Pending& pending = pending_[number];
  if (error == ECONNREFUSED && !pending.version6 && sandbox_ != nullptr) {
    pending.version6 = true;
    return Ask(number);
  }
  relays_.Refuse(pending.connection, ErrnoError(error, "port " + std::to_string(pending.port)).message());
  Forget(number);
}

void PodPorts::Forget(int32_t number) {
  auto node = pending_.extract(number);
  if (!node.empty() && node.mapped().socket) loop_->Remove(node.mapped().socket.get());
}

void PodPorts::Reset() {
  while (!pending_.empty()) Forget(pending_.begin()->first);
  relays_.Clear();
}

void PodPorts::End() {
  sandbox_ = nullptr;
  while (!pending_.empty()) {
    relays_.Refuse(pending_.begin()->second.connection, "the command has ended");
    Forget(pending_.begin()->first);
  }
  const bool first = !std::exchange(ended_, true);
  if (drained_) return;
  if (relays_.Reading()) {
    if (!first) return;
    drain_timer_ = loop_->After(kDrainMicros, [this] {
      drain_timer_ = 0;
      drained_ = true;
      relays_.Clear();
      events_.on_drained();
    });
    return;
  }
  drained_ = true;
  loop_->Cancel(std::exchange(drain_timer_, 0));
  // Posted, because a relay may be on the stack.
  if (!first) loop_->Post([this] { events_.on_drained(); });
}

}  // namespace vrun::node
