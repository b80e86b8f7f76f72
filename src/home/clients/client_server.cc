// SPDX-License-Identifier: Apache-2.0
#include "home/clients/client_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/log.h"
#include "home/clients/admin_queries.h"
#include "home/clients/queries.h"
#include "home/runs/runs.h"

namespace vrun::home {
namespace {
constexpr int64_t kPauseMicros = 100'000;
}

ClientServer::ClientServer(EventLoop* loop, Runs* runs, Queries* queries, AdminQueries* admin,
                           std::function<void()> before)
    : loop_(loop), runs_(runs), queries_(queries), admin_(admin), before_(std::move(before)) {}

ClientServer::~ClientServer() { Stop(); }

Status ClientServer::Listen(const std::string& path) {
  VRUN_ASSIGN(socket_, ListenUnix(path));
  VRUN_TRY(SetNonBlocking(socket_.get(), true));
  path_ = path;
  return loop_->Add(socket_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void ClientServer::Stop() {
  loop_->Cancel(again_);
  again_ = 0;
  if (!socket_) return;
  loop_->Remove(socket_.get());
  socket_.Reset();
  ::unlink(path_.c_str());
}

void ClientServer::Accept() {
  std::erase_if(clients_, [](const auto& c) { return !c->open(); });
  for (;;) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        // The connection stays in the queue and would be announced again at once.
        LogWarning("accept: {}", ErrnoError("too many open files").message());
        loop_->Modify(socket_.get(), 0);
        again_ = loop_->After(kPauseMicros, [this] {
          again_ = 0;
          loop_->Modify(socket_.get(), EPOLLIN);
        });
      }
      return;
    }
    auto peer = UnixPeer(socket.get());
    if (!peer || peer->uid != ::geteuid()) {
      LogWarning("a client of uid {} was refused", peer ? peer->uid : 0);
      continue;
    }
    auto client = std::make_shared<ClientConnection>(loop_, std::move(socket), *peer);
    clients_.insert(client);
    std::weak_ptr<ClientConnection> weak = client;
    client->Start({.on_message =
                       [this, weak](v1::ClientMessage message, std::vector<UniqueFd> fds) {
                         if (auto c = weak.lock()) First(c, std::move(message), std::move(fds));
                       },
                   .on_closed = [] {}});
  }
}

void ClientServer::First(const std::shared_ptr<ClientConnection>& client, v1::ClientMessage message,
                         std::vector<UniqueFd> fds) {
  before_();
  switch (message.body_case()) {
    case v1::ClientMessage::kRun:
      if (message.run().test_only()) return admin_->Test(client, message.run());
      return runs_->StartRun(client, message.run(), std::move(fds));
    case v1::ClientMessage::kResume: return runs_->Resume(client, message.resume(), std::move(fds));
    case v1::ClientMessage::kQuery: return queries_->Answer(client, message.query());
    default: return client->SendError(Error(Code::kInvalid, "a conversation does not begin with that message"));
  }
}

}  // namespace vrun::home
