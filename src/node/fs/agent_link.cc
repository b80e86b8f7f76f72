// SPDX-License-Identifier: Apache-2.0
#include "node/fs/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "proto/fsctl.pb.h"

namespace vrun::node {
namespace {

v1::FsReply ErrorReply(const Error& error) {
  v1::FsReply reply;
  reply.mutable_error()->set_code(static_cast<int>(error.code()));
  reply.mutable_error()->set_message(Escape(error.message()));
  return reply;
}

}  // namespace

AgentLink::AgentLink(EventLoop* loop, UniqueFd listener) : loop_(loop), listener_(std::move(listener)) {
  if (listener_) ::fcntl(listener_.get(), F_SETFD, FD_CLOEXEC);
}

AgentLink::~AgentLink() {
  if (control_) loop_->Remove(control_.get());
  if (listener_) loop_->Remove(listener_.get());
}

Status AgentLink::Start(Events events) {
  events_ = std::move(events);
  VRUN_TRY(SetNonBlocking(listener_.get(), true));
  return loop_->Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnConnect(); });
}

void AgentLink::TellError(const Error& error) {
  pollfd waiting{listener_.get(), POLLIN, 0};
  if (!listener_ || ::poll(&waiting, 1, 1000) != 1) return;
  const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection) (void)SendFrame(connection.get(), ErrorReply(error).SerializeAsString());
}

void AgentLink::OnConnect() {
  UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) return;
  if (control_) loop_->Remove(control_.get());
  control_ = std::move(connection);
  ++connection_;
  reader_ = FrameReader();
  writer_ = FrameWriter();
  writing_ = false;
  const Status added = loop_->Add(control_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
  if (!added) control_.Reset();
}

void AgentLink::OnReady(uint32_t events) {
  if (events & EPOLLOUT) {
    auto done = writer_.Flush(control_.get());
    if (!done) return Gone();
    writing_ = !*done;
    loop_->Modify(control_.get(), writing_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  auto open = reader_.ReadAvailable(control_.get(), [this](Frame frame) {
    if (!control_) return;
    v1::FsRequest request;
    if (request.ParseFromString(frame.bytes)) return events_.request(request);
    LogError("the agent sent a request that does not parse");
  });
  if (!open) {
    LogError("the agent sent a broken frame: {}", Escape(open.error().message()));
  }
  if (!open || !*open) Gone();
}

void AgentLink::Gone() {
  if (!control_) return;
  loop_->Remove(control_.get());
  control_.Reset();
  ++connection_;
  events_.gone();
}

void AgentLink::Reply(const v1::FsReply& reply, std::vector<UniqueFd> fds) {
  if (!control_) return;
  writer_.Queue(reply.SerializeAsString(), std::move(fds));
  if (writing_) return;
  auto done = writer_.Flush(control_.get());
  if (done && *done) return;
  // Also after an error: the loop will then notice that the agent is gone.
  writing_ = true;
  loop_->Modify(control_.get(), EPOLLIN | EPOLLOUT);
}

void AgentLink::ReplyError(uint64_t id, const Error& error) {
  v1::FsReply reply = ErrorReply(error);
  reply.set_id(id);
  Reply(reply);
}

}  // namespace vrun::node
