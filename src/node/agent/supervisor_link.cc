// SPDX-License-Identifier: Apache-2.0
#include "node/agent/supervisor_link.h"

#include <signal.h>
#include <sys/socket.h>

#include "base/files.h"
#include "base/log.h"

namespace vrun::node {

Result<std::unique_ptr<SupervisorLink>> SupervisorLink::Start(EventLoop* loop) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoError("socketpair");
  UniqueFd ours(pair[0]), theirs(pair[1]);
  VRUN_ASSIGN(auto child, ChildProcess::Spawn(loop, {BinaryDirectory() + "/vrund-task", "--fd", "3"}, {theirs.get()}));
  std::unique_ptr<SupervisorLink> link(new SupervisorLink(loop, std::move(ours)));
  link->child_ = std::move(child);
  VRUN_TRY(link->Watch());
  return link;
}

Result<std::unique_ptr<SupervisorLink>> SupervisorLink::Adopt(EventLoop* loop, const std::string& socket_path) {
  VRUN_ASSIGN(UniqueFd socket, ConnectUnix(socket_path));
  std::unique_ptr<SupervisorLink> link(new SupervisorLink(loop, std::move(socket)));
  VRUN_TRY(link->Watch());
  return link;
}

SupervisorLink::~SupervisorLink() { Close(); }

Status SupervisorLink::Watch() {
  VRUN_TRY(SetNonBlocking(socket_.get(), true));
  return loop_->Add(socket_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
}

void SupervisorLink::SetEvents(Events events) { events_ = std::move(events); }

void SupervisorLink::Send(std::string frame) { Send(std::move(frame), {}); }

void SupervisorLink::Send(std::string frame, std::vector<UniqueFd> fds) {
  if (!socket_) return;
  writer_.Queue(std::move(frame), std::move(fds));
  OnReady(EPOLLOUT);
}

void SupervisorLink::Kill() {
  if (child_) return child_->Kill(SIGTERM);
  Result<PeerCredentials> peer = UnixPeer(socket_.get());
  if (peer && peer->pid > 0) ::kill(peer->pid, SIGTERM);
}

void SupervisorLink::OnReady(uint32_t events) {
  if (events & EPOLLOUT) {
    Result<bool> done = writer_.Flush(socket_.get());
    // A broken connection is also seen by the reader, which first reads the frames that still wait.
    bool more = done.has_value() && !*done;
    if (more != writing_) loop_->Modify(socket_.get(), more ? EPOLLIN | EPOLLOUT : EPOLLIN);
    writing_ = more;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Result<bool> open = reader_.ReadAvailable(socket_.get(), [this](Frame frame) {
    if (events_.on_frame) events_.on_frame(std::move(frame.bytes));
  });
  if (open && *open) return;
  if (!open) LogError("task supervisor: {}", open.error().message());
  Close();
  if (auto closed = std::move(events_.on_closed)) closed();  // may destroy *this
}

void SupervisorLink::Close() {
  if (!socket_) return;
  loop_->Remove(socket_.get());
  socket_.Reset();
}

}  // namespace vrun::node
