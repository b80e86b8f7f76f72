// SPDX-License-Identifier: Apache-2.0
#include "node/fs/keeper_link.h"

#include <utility>

#include "base/io/message_socket.h"
#include "base/log.h"
#include "proto/fsctl.pb.h"

namespace vrun::node {

Result<std::unique_ptr<KeeperLink>> KeeperLink::Start(UniqueFd socket, Items* left) {
  std::unique_ptr<KeeperLink> link(new KeeperLink(std::move(socket)));
  while (link->present()) {
    VRUN_ASSIGN(Frame frame, ReceiveFrame(link->socket_.get()));
    v1::KeeperMessage message;
    if (!message.ParseFromString(frame.bytes))
      return Error(Code::kCorrupt, "the keeper sent a message that does not parse");
    if (message.has_all()) break;
    if (message.has_keep()) {
      (*left)[message.keep().name()] = {std::move(*message.mutable_keep()->mutable_value()), std::move(frame.fds)};
    }
  }
  return link;
}

void KeeperLink::Keep(std::string_view name, std::string value, const std::vector<int>& fds) {
  v1::KeeperMessage message;
  message.mutable_keep()->set_name(std::string(name));
  message.mutable_keep()->set_value(std::move(value));
  Send(message, fds);
}

void KeeperLink::Drop(std::string_view name) {
  v1::KeeperMessage message;
  message.set_drop(std::string(name));
  Send(message, {});
}

void KeeperLink::SetProgram(const std::string& path) {
  v1::KeeperMessage message;
  message.set_program(path);
  Send(message, {});
}

void KeeperLink::Send(const v1::KeeperMessage& message, const std::vector<int>& fds) {
  if (!socket_) return;
  const Status sent = SendFrame(socket_.get(), message.SerializeAsString(), fds);
  if (sent) return;
  LogError("the keeper is gone: {}: serving continues, but nothing takes over after a crash", sent.error().message());
  socket_.Reset();
}

}  // namespace vrun::node
