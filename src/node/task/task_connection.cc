// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include "base/files.h"
#include "base/log.h"

namespace vrun::node {

TaskConnection::TaskConnection(EventLoop* loop, UniqueFd socket, Events events)
    : loop_(loop), socket_(std::move(socket)), events_(std::move(events)) {
  static_cast<void>(SetNonBlocking(socket_.get(), true));
  int size = 1 << 20;  // room for several messages: fewer loop turns for a fast stream
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  Status added = loop_->Add(socket_.get(), EPOLLIN, [this](uint32_t ready) { OnReady(ready); });
  if (!added) LogError("watch the agent's connection: {}", added.error().message());
}

TaskConnection::~TaskConnection() { loop_->Remove(socket_.get()); }

void TaskConnection::Send(std::string frame) {
  writer_.Queue(std::move(frame));
  if (!wants_write_) Flush();
}

void TaskConnection::Flush() {
  // A broken connection is also seen by the reader.
  Result<bool> done = writer_.Flush(socket_.get());
  bool more = done.has_value() && !*done;
  if (more != wants_write_) loop_->Modify(socket_.get(), more ? EPOLLIN | EPOLLOUT : EPOLLIN);
  wants_write_ = more;
}

void TaskConnection::SendRest() {
  for (;;) {
    Result<bool> done = writer_.Flush(socket_.get());
    if (!done || *done) return;
    pollfd p{socket_.get(), POLLOUT, 0};
    if (::poll(&p, 1, 5000) <= 0) return;
  }
}

void TaskConnection::OnReady(uint32_t ready) {
  if (ready & EPOLLOUT) {
    Flush();
    if (room()) events_.on_writable();
  }
  if ((ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Result<bool> open = reader_.ReadAvailable(socket_.get(), [this](Frame frame) { events_.on_frame(std::move(frame)); });
  if (open && *open) return;
  if (!open) LogError("connection to the agent: {}", open.error().message());
  loop_->Remove(socket_.get());
  auto closed = std::move(events_.on_closed);
  closed();
}

}  // namespace vrun::node
