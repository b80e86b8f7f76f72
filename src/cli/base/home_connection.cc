// SPDX-License-Identifier: Apache-2.0
#include "cli/base/home_connection.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "base/escape.h"
#include "cli/base/daemon_process.h"
#include "cli/base/login.h"
#include "cli/base/table.h"

namespace vrun::cli {
namespace {

bool NobodyListens(const Error& error) {
  return error.error_number() == ENOENT || error.error_number() == ECONNREFUSED || error.error_number() == ENOTDIR;
}

// The connection ended before anything was received.
bool HasEnded(const Error& error) {
  return error.error_number() == ECONNRESET || error.error_number() == EPIPE || error.code() == Code::kUnavailable;
}

}  // namespace

Result<HomeConnection> HomeConnection::Make() {
  VRUN_ASSIGN(Places places, FindPlaces());
  return HomeConnection(std::move(places));
}

Result<UniqueFd> HomeConnection::Connect() const {
  auto socket = ConnectUnix(places_.socket);
  if (!socket) return std::move(socket).error();
  // The process that answers will get our terminal, so it must have our own uid.
  VRUN_ASSIGN(PeerCredentials peer, UnixPeer(socket->get()));
  if (peer.uid != ::geteuid()) {
    return Error(Code::kDenied, "home at " + Escape(places_.socket) + ": user " + std::to_string(peer.uid) +
                                    " answers there: remove the socket");
  }
  return socket;
}

Result<UniqueFd> HomeConnection::ConnectOrStart(int interrupt_fd) const {
  auto socket = Connect();
  if (socket || !NobodyListens(socket.error())) return socket;

  Status places = MakePlaces(places_, ::geteuid());
  if (!places) return std::move(places).error().With("start home");
  VRUN_ASSIGN(std::string vrund, FindProgram("vrund"));
  auto lock = LockFile(places_.state_dir + "/home.start.lock", interrupt_fd < 0);
  if (!lock) {
    if (lock.error().code() == Code::kExists) return Error(Code::kUnavailable, "home: another client is starting it");
    return std::move(lock).error().With("start home");
  }
  // The previous holder of the lock has started home.
  socket = Connect();
  if (socket || !NobodyListens(socket.error())) return socket;

  DaemonSpec spec;
  spec.name = "home";
  spec.program = std::move(vrund);
  spec.arguments = {"home"};
  spec.log_file = places_.log_dir + "/home.log";
  spec.interrupt_fd = interrupt_fd;
  auto config = ReadConfig(places_.config_file);
  if (config ? config->controller.empty() : config.error().code() == Code::kNotFound) {
    VRUN_ASSIGN(const std::optional<LoggedIn> here, LogInHere(places_));
    if (here) {
      std::fprintf(stderr, "%s: you are %s in the cluster of this machine\n", program_invocation_short_name,
                   Escape(here->name).c_str());
      config = ReadConfig(places_.config_file);
    }
  }
  if (config) {
    if (config->root != "/") spec.arguments.insert(spec.arguments.end(), {"--root", config->root});
  } else if (config.error().code() != Code::kNotFound) {
    return std::move(config).error();
  }
  auto started = StartDaemon(spec);
  socket = Connect();
  // A home that loses the race against another one fails to start; the winner can be used.
  if (!socket && !started) return std::move(started).error();
  return socket;
}

Status SendMessage(int socket, const v1::ClientMessage& message, const std::vector<int>& fds) {
  std::string bytes;
  if (!message.SerializeToString(&bytes)) return Error(Code::kInternal, "message to home: cannot be encoded");
  Status status = SendFrame(socket, bytes, fds);
  if (!status) return std::move(status).error().With("home");
  return {};
}

Result<v1::HomeMessage> ParseHomeMessage(const std::string& bytes) {
  v1::HomeMessage message;
  if (!message.ParseFromString(bytes)) {
    return Error(Code::kCorrupt, "home: sent a message that this client does not understand: stop it with `vctl down`");
  }
  return message;
}

Result<v1::HomeMessage> ReceiveMessage(int socket, bool quiet) {
  pollfd p{socket, POLLIN, 0};
  int n = ::poll(&p, 1, 2000);
  if (n == 0 && !quiet) {
    std::fprintf(stderr, "%s: still waiting: home has not answered yet: its log may say why (`vctl status` names it)\n",
                 program_invocation_short_name);
  }
  auto frame = ReceiveFrame(socket);
  if (!frame) return std::move(frame).error().With("home");
  return ParseHomeMessage(frame->bytes);
}

Result<FirstAnswer> SendAndReceive(const HomeConnection& home, const v1::ClientMessage& message,
                                   const std::vector<int>& fds, bool start, bool quiet) {
  for (bool again = start;; again = false) {
    VRUN_ASSIGN(UniqueFd socket, start ? home.ConnectOrStart() : home.Connect());
    const Status sent = SendMessage(socket.get(), message, fds);
    auto answer = sent ? ReceiveMessage(socket.get(), quiet) : sent.error();
    if (answer) return FirstAnswer{std::move(socket), *std::move(answer)};
    if (!again || !HasEnded(answer.error())) return std::move(answer).error();
  }
}

Result<v1::HomeMessage> Ask(const HomeConnection& home, const v1::Query& query, bool start, bool quiet) {
  v1::ClientMessage message;
  *message.mutable_query() = query;
  VRUN_ASSIGN(FirstAnswer answer, SendAndReceive(home, message, {}, start, quiet));
  if (answer.message.has_error()) return FromWire(answer.message.error());
  return std::move(answer.message);
}

Error FromWire(const v1::Error& error) {
  Code code = error.code() >= static_cast<int>(Code::kInvalid) && error.code() <= static_cast<int>(Code::kInternal)
                  ? static_cast<Code>(error.code())
                  : Code::kInternal;
  return Error(code, error.message().empty() ? "home: failed and gave no reason" : SafeLine(error.message()));
}

}  // namespace vrun::cli
