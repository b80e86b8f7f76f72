// SPDX-License-Identifier: Apache-2.0
#include "ports/socket_relay.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace vrun {
namespace {

constexpr size_t kPiece = 64u << 10;

}  // namespace

SocketRelay::SocketRelay(EventLoop* loop, UniqueFd socket, Events events)
    : loop_(loop), socket_(std::move(socket)), events_(std::move(events)) {
  Watch();
}

SocketRelay::~SocketRelay() { Unwatch(); }

void SocketRelay::Receive(std::string data) {
  if (data.empty()) return;
  if (write_ends_) return Over("data after the end");
  if (queued_ + data.size() > kWindow) return Over("more data than the window has room for");
  queued_ += data.size();
  queue_.push_back(std::move(data));
  if (Write()) Watch();
}

void SocketRelay::ReceiveEnd() {
  write_ends_ = true;
  if (Write()) Watch();
}

void SocketRelay::Passed(uint64_t n) {
  unpassed_ -= std::min(n, unpassed_);
  Watch();
}

void SocketRelay::Break() {
  Unwatch();
  events_.on_over = nullptr;
  const linger at_once{1, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void SocketRelay::Watch() {
  const uint32_t wanted =
      (MayRead() ? static_cast<uint32_t>(EPOLLIN) : 0u) | (queue_.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT));
  if (wanted == watched_) return;
  if (wanted == 0) return Unwatch();
  if (watched_ != 0) {
    loop_->Modify(socket_.get(), wanted);
  } else if (!loop_->Add(socket_.get(), wanted, [this](uint32_t ready) { OnReady(ready); })) {
    return;  // out of memory: the connection stands still until it is ended
  }
  watched_ = wanted;
}

void SocketRelay::Unwatch() {
  if (std::exchange(watched_, 0) != 0) loop_->Remove(socket_.get());
}

void SocketRelay::OnReady(uint32_t ready) {
  if ((ready & (EPOLLOUT | EPOLLERR)) != 0 && !Write()) return;
  if ((ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && MayRead() && !Read()) return;
  Watch();
}

bool SocketRelay::Read() {
  std::string data(std::min<uint64_t>(kPiece, kWindow - unpassed_), '\0');
  const ssize_t n = ::recv(socket_.get(), data.data(), data.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n < 0) {
    Over(ErrnoError("read").message());
    return false;
  }
  if (n > 0) {
    data.resize(static_cast<size_t>(n));
    unpassed_ += data.size();
    events_.on_data(std::move(data));
    return true;
  }
  read_ended_ = true;
  events_.on_end();
  if (write_ended_) Over("");
  return !write_ended_;
}

bool SocketRelay::Write() {
  uint64_t passed = 0;
  while (!queue_.empty()) {
    const std::string& first = queue_.front();
    const ssize_t n = ::send(socket_.get(), first.data() + first_written_, first.size() - first_written_,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      Over(ErrnoError("write").message());
      return false;
    }
    passed += static_cast<uint64_t>(n);
    first_written_ += static_cast<size_t>(n);
    if (first_written_ < first.size()) continue;
    queue_.pop_front();
    first_written_ = 0;
  }
  queued_ -= passed;
  if (passed > 0) events_.on_passed(passed);
  if (!write_ends_ || write_ended_ || !queue_.empty()) return true;
  write_ended_ = true;
  ::shutdown(socket_.get(), SHUT_WR);
  if (read_ended_) Over("");
  return !read_ended_;
}

void SocketRelay::Over(const std::string& problem) {
  Unwatch();
  read_ended_ = true;
  auto over = std::move(events_.on_over);
  events_.on_over = nullptr;
  if (over) over(problem);
}

}  // namespace vrun
