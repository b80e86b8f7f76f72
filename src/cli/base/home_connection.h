// SPDX-License-Identifier: Apache-2.0
// The way to the user's home daemon: its socket, and starting the daemon when there is none.
#pragma once

#include <string>

#include "base/config.h"
#include "base/io/frame_socket.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/local.pb.h"

namespace vrun::cli {

class HomeConnection {
 public:
  // Creates nothing yet.
  static Result<HomeConnection> Make();
  explicit HomeConnection(Places places) : places_(std::move(places)) {}

  const Places& places() const { return places_; }

  // A connection to the running home. kNotFound or kUnavailable: there is none.
  Result<UniqueFd> Connect() const;

  // Connects; starts home first when there is none. Clients that start at once agree by a lock, so that one home comes
  // up. `interrupt_fd` (-1: none) becoming readable ends the wait with kAborted, and an occupied lock is then not
  // waited for either: kUnavailable, try again.
  Result<UniqueFd> ConnectOrStart(int interrupt_fd = -1) const;

 private:
  Places places_;
};

Status SendMessage(int socket, const v1::ClientMessage& message, const std::vector<int>& fds = {});
Result<v1::HomeMessage> ParseHomeMessage(const std::string& bytes);
// Blocking. After two seconds of silence one line on stderr says what is waited for, unless `quiet`.
Result<v1::HomeMessage> ReceiveMessage(int socket, bool quiet);
// What home said first to a message, and the connection on which it says more. A home that ends before it has said
// anything (killed, or replaced by another version) is asked once more, and started again, if `start`: so the message
// must be one that may come twice.
struct FirstAnswer {
  UniqueFd socket;
  v1::HomeMessage message;
};
Result<FirstAnswer> SendAndReceive(const HomeConnection& home, const v1::ClientMessage& message,
                                   const std::vector<int>& fds, bool start, bool quiet);
// One question, one answer, on a connection of its own. `start`: start home when there is none. An Error answer is an
// error.
Result<v1::HomeMessage> Ask(const HomeConnection& home, const v1::Query& query, bool start, bool quiet = false);
// v1::Error as ours.
Error FromWire(const v1::Error& error);

}  // namespace vrun::cli
