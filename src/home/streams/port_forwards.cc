// SPDX-License-Identifier: Apache-2.0
#include "home/streams/port_forwards.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "ports/published_port.h"

namespace vrun::home {
namespace {

constexpr int kBacklog = 128;
constexpr int64_t kLookMicros = 20'000;
constexpr int64_t kNoDescriptorMicros = 200'000;

// Numbers of one home never meet those of the home before.
uint64_t FirstNumber() {
  uint32_t random = 0;
  [[maybe_unused]] const ssize_t n = ::getrandom(&random, sizeof random, 0);
  return (uint64_t{random} << 32) + 1;
}

}  // namespace

PortForwards::PortForwards(EventLoop* loop)
    : loop_(loop),
      relays_(loop,
              [this](v1::PortFrame frame) {
                if (send_) send_(std::move(frame));
              }),
      next_(FirstNumber()) {}

Result<std::shared_ptr<PortForwards>> PortForwards::Listen(EventLoop* loop, const Ports& ports) {
  std::shared_ptr<PortForwards> out;
  if (ports.empty()) return out;
  out.reset(new PortForwards(loop));
  for (const v1::PublishedPort& port : ports) VRUN_TRY(out->Add(port));
  return out;
}

Status PortForwards::Add(const v1::PublishedPort& port) {
  const std::string text = port.address().empty() ? "127.0.0.1" : port.address();
  const auto number = htons(static_cast<uint16_t>(port.port()));
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  four.sin_port = number;
  six.sin6_family = AF_INET6;
  six.sin6_port = number;
  const bool is_four = ::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1;
  if (!is_four && ::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) != 1) {
    return Error(Code::kInvalid, "--publish " + HomeAddressText(port) + ": no numeric address");
  }
  auto listener = std::make_unique<Listener>();
  listener->pod_port = port.pod_port();
  listener->socket.Reset(::socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener->socket) return ErrnoError("--publish " + HomeAddressText(port));
  const int on = 1;
  ::setsockopt(listener->socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!is_four) ::setsockopt(listener->socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  const auto* address = is_four ? reinterpret_cast<const sockaddr*>(&four) : reinterpret_cast<const sockaddr*>(&six);
  if (::bind(listener->socket.get(), address, is_four ? sizeof four : sizeof six) != 0 ||
      ::listen(listener->socket.get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return Error(Code::kExists, "--publish " + HomeAddressText(port) +
                                      ": the port is in use on this machine: choose another one, as in " +
                                      std::to_string(port.port() == 65535 ? 65534 : port.port() + 1) + ":" +
                                      std::to_string(port.pod_port()));
    }
    return ErrnoError(error, "--publish " + HomeAddressText(port));
  }
  listeners_.push_back(std::move(listener));
  return {};
}

PortForwards::~PortForwards() { Watch(false); }

void PortForwards::Watch(bool on) {
  for (const auto& listener : listeners_) {
    if (listener->watched == on) continue;
    if (!on) {
      loop_->Remove(listener->socket.get());
      listener->watched = false;
      continue;
    }
    const Listener* raw = listener.get();
    const Status added = loop_->Add(raw->socket.get(), EPOLLIN, [this, raw](uint32_t) { Accept(*raw); });
    if (!added) LogWarning("watch a published port: {}", added.error().message());
    listener->watched = added.has_value();
  }
}

void PortForwards::Connected(std::function<void(v1::PortFrame)> send) {
  send_ = std::move(send);
  Watch(true);
}

void PortForwards::Accept(const Listener& listener) {
  UniqueFd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    // The listener stays readable: look again when there may be a descriptor.
    Watch(false);
    loop_->After(kNoDescriptorMicros, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self && self->send_) self->Watch(true);
    });
    return;
  }
  if (!socket || !send_) return;
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t connection = next_++;
  if (!relays_.Expect(connection)) return;  // closed: too many
  v1::PortFrame frame;
  frame.set_connection(connection);
  frame.set_open(listener.pod_port);
  send_(std::move(frame));
  relays_.Begin(connection, std::move(socket));
}

void PortForwards::Receive(v1::PortFrame frame) {
  if (frame.what_case() == v1::PortFrame::kBroken) {
    LogDebug("a connection to a published port: {}", frame.broken());
  }
  relays_.Receive(std::move(frame));
}

void PortForwards::Disconnected() {
  if (!send_) return;
  send_ = nullptr;
  Watch(false);
  relays_.Clear();
}

void PortForwards::Pause() {
  send_ = nullptr;
  Watch(false);
  Linger(MonotonicMicros() + kDrainMicros);
}

void PortForwards::End() {
  Pause();
  listeners_.clear();
}

void PortForwards::Linger(int64_t until_micros) {
  if (send_) return;  // another pod has begun
  if (!relays_.Writing() || MonotonicMicros() > until_micros) return relays_.Finish();
  loop_->After(kLookMicros, [self = shared_from_this(), until_micros] { self->Linger(until_micros); });
}

}  // namespace vrun::home
