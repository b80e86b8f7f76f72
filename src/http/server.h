// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server on a thread of its own. Boost.Beast moves the bytes, in server.cc only.
//
// A connection has one request at a time. A client that sends too much, too slowly, or something else than HTTP gets a
// problem (message.h) and is cut off. When there are as many connections as there may be, the one that has been silent
// for longest makes room, of the address that has most of them: whoever holds many takes nothing from others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "http/message.h"

namespace vrun::http {

struct Tls {
  std::string certificate, key;  // PEM
};

struct Limits {
  size_t header_bytes = 32u << 10;
  size_t body_bytes = 1u << 20;
  size_t connections = 512;
  size_t event_streams = 128;     // of these
  size_t event_bytes = 1u << 20;  // queued for one stream; then the client is too slow
  int request_seconds = 30;  // for a whole request, and for an answer to be taken; also how long a connection idles
  int event_heartbeat_seconds = 15;
};

class Server {
 public:
  // Called on the server's thread; must not block.
  using Handler = std::function<void(Request, std::shared_ptr<Exchange>)>;

  // Listens on HOST:PORT, HOST being numeric, or localhost; port 0 picks one. Without `tls` it speaks plain HTTP.
  static Result<std::unique_ptr<Server>> Start(const std::string& address, const std::optional<Tls>& tls,
                                               const Limits& limits, Handler handler);
  // Cuts off all clients and waits for the thread. Exchanges and Events may live on; they do nothing.
  virtual ~Server() = default;
  virtual int port() const = 0;
};

// Whether only this machine reaches HOST:PORT.
bool IsLoopback(const std::string& address);

}  // namespace vrun::http
