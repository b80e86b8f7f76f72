// SPDX-License-Identifier: Apache-2.0
// Connects to the user's home daemon and starts it when none runs.
#pragma once

#include <string>

#include "base/config.h"
#include "base/io/message_socket.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "proto/local.pb.h"

namespace vrun::cli {

class HomeConnection {
 public:
  // Does not create anything yet.
  static Result<HomeConnection> Make();
  explicit HomeConnection(Places places) : places_(std::move(places)) {}

  const Places& places() const { return places_; }

  // Connects to the running home. kNotFound or kUnavailable: there is none.
  Result<UniqueFd> Connect() const;

  // Connects; starts home first when none runs. A lock makes simultaneous clients start only one home. When
  // `interrupt_fd` (-1: none) becomes readable, the wait ends with kAborted. With an `interrupt_fd` an occupied lock is
  // not waited for either: kUnavailable, try again.
  Result<UniqueFd> ConnectOrStart(int interrupt_fd = -1) const;

 private:
  Places places_;
};

Status SendMessage(int socket, const v1::ClientMessage& message, const std::vector<int>& fds = {});
Result<v1::HomeMessage> ParseHomeMessage(const std::string& bytes);
// Blocking. After two seconds of silence one line on stderr says what it waits for, unless `quiet`.
Result<v1::HomeMessage> ReceiveMessage(int socket, bool quiet);
// Home's first answer to a message, and the connection for further answers. If home ends before it has answered (it was
// killed, or replaced by another version), the message is sent once more, to a newly started home if `start`. So the
// message must be safe to repeat.
struct FirstAnswer {
  UniqueFd socket;
  v1::HomeMessage message;
};
Result<FirstAnswer> SendAndReceive(const HomeConnection& home, const v1::ClientMessage& message,
                                   const std::vector<int>& fds, bool start, bool quiet);
// Sends one query on its own connection and returns one answer. `start`: start home when none runs. An Error answer is
// returned as an error.
Result<v1::HomeMessage> Ask(const HomeConnection& home, const v1::Query& query, bool start, bool quiet = false);
// Converts v1::Error to Error.
Error FromWire(const v1::Error& error);

}  // namespace vrun::cli
