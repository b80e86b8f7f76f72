// SPDX-License-Identifier: Apache-2.0
#include "home/streams/client_connection.h"

#include "base/log.h"

namespace vrun::home {

ClientConnection::ClientConnection(EventLoop* loop, UniqueFd socket, PeerCredentials peer)
    : loop_(loop), socket_(std::move(socket)), peer_(peer) {}

ClientConnection::~ClientConnection() {
  if (socket_) loop_->Remove(socket_.get());
}

void ClientConnection::Start(Events events) {
  events_ = std::move(events);
  Status added = loop_->Add(socket_.get(), EPOLLIN, [this](uint32_t happened) { OnReady(happened); });
  if (!added) LogError("client connection: {}", added.error().message());
}

void ClientConnection::OnReady(uint32_t happened) {
  auto self = shared_from_this();
  if ((happened & EPOLLOUT) != 0) Flush();
  if (!socket_ || (happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  auto open = reader_.ReadAvailable(socket_.get(), [this](Frame frame) {
    if (closing_ || !socket_) return;
    v1::ClientMessage message;
    if (!message.ParseFromString(frame.bytes)) {
      SendError(Error(Code::kCorrupt,
                      "a message does not parse: client and home have different versions: `vctl down` stops home"));
      return;
    }
    auto on_message = events_.on_message;  // the callback may replace it
    if (on_message) on_message(std::move(message), std::move(frame.fds));
  });
  if (!open || !*open) Gone();
}

void ClientConnection::Gone() {
  if (!socket_) return;
  loop_->Remove(socket_.get());
  socket_.Reset();
  if (closing_) return;
  auto on_closed = events_.on_closed;
  events_ = {};
  if (on_closed) on_closed();
}

void ClientConnection::Send(const v1::HomeMessage& message) {
  if (!socket_ || closing_) return;
  writer_.Queue(message.SerializeAsString());
  Flush();
}

void ClientConnection::SendError(const Error& error) {
  v1::HomeMessage message;
  message.mutable_error()->set_code(static_cast<int>(error.code()));
  message.mutable_error()->set_message(error.message());
  Send(message);
  Close();
}

void ClientConnection::Close() {
  if (!socket_ || closing_) return;
  closing_ = true;
  events_ = {};
  Flush();
}

void ClientConnection::Flush() {
  if (!socket_) return;
  auto self = shared_from_this();
  auto done = writer_.Flush(socket_.get());
  if (!done) {
    // Found while sending: reported later, so that no callback runs inside Send.
    loop_->Post([self] { self->Gone(); });
    return;
  }
  if (wants_write_ == *done) {
    wants_write_ = !*done;
    loop_->Modify(socket_.get(), wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  if (!*done) return;
  if (closing_) {
    loop_->Remove(socket_.get());
    socket_.Reset();
  } else if (auto on_drained = events_.on_drained) {
    on_drained();
  }
}

}  // namespace vrun::home
