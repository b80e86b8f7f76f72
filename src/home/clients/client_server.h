// SPDX-License-Identifier: Apache-2.0
// Home's Unix socket: accepts connections of the same user's command line and hands each conversation to its handler.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "home/streams/client_connection.h"

namespace vrun::home {

class AdminQueries;
class Queries;
class Runs;

// Loop thread only.
class ClientServer {
 public:
  // `before` is called before each first message is handled.
  ClientServer(EventLoop* loop, Runs* runs, Queries* queries, AdminQueries* admin, std::function<void()> before);
  ~ClientServer();

  // Listens; a stale socket file is replaced. kExists: another home answers there.
  Status Listen(const std::string& path);
  void Stop();

 private:
  void Accept();
  void First(const std::shared_ptr<ClientConnection>& client, v1::ClientMessage message, std::vector<UniqueFd> fds);

  EventLoop* const loop_;
  Runs* const runs_;
  Queries* const queries_;
  AdminQueries* const admin_;
  const std::function<void()> before_;
  UniqueFd socket_;
  std::string path_;
  EventLoop::TimerId again_ = 0;
  std::set<std::shared_ptr<ClientConnection>> clients_;
};

}  // namespace vrun::home
