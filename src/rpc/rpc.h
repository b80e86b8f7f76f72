// SPDX-License-Identifier: Apache-2.0
// gRPC between the daemons, without its headers: messages are serialized protobufs, methods are "/vrun.v1.Service/Name".
//
// Any gRPC implementation can talk to it: the schemas are in proto/, the transport is plain gRPC over mTLS. Callbacks run
// on gRPC's threads, one at a time per stream; they must not block. Post to an EventLoop to get home.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "rpc/credentials.h"

namespace vrun::rpc {

// One end of a bidirectional stream of messages.
class Stream {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnMessage(std::string message) = 0;
    // queued_bytes() fell to kLowWater again after it had passed kHighWater.
    virtual void OnWritable() {}
    // Last callback. An orderly end by the other side is Code::kOk with an empty message.
    virtual void OnClosed(Error reason) = 0;
  };
  static constexpr size_t kHighWater = 4u << 20;
  static constexpr size_t kLowWater = 1u << 20;

  virtual ~Stream() = default;   // closes; OnClosed is not called any more once the destructor has returned
  // Any thread; queues without bound: a sender looks at queued_bytes(). Dropped after the stream has closed.
  virtual void Send(std::string message) = 0;
  virtual size_t queued_bytes() const = 0;
  // Half-close: the other side sees OnClosed(kOk) after everything that was sent.
  virtual void Finish() = 0;
  // Tears down at once.
  virtual void Cancel(Error reason) = 0;
};

// A client's connection. Reconnects by itself; keepalive notices a silent peer within about 10 s.
class Channel {
 public:
  // `peer` is the role that the other side's certificate must have ("controller", "node").
  static Result<std::unique_ptr<Channel>> Dial(const std::string& address, const Credentials& mine, const std::string& peer);
  virtual ~Channel() = default;
  virtual void Call(const std::string& method, std::string request, int64_t timeout_micros,
                    std::function<void(Result<std::string>)> done) = 0;
  // `handler` must outlive the stream.
  virtual std::unique_ptr<Stream> OpenStream(const std::string& method, Stream::Handler* handler) = 0;
  virtual const std::string& address() const = 0;
};

// Who called: from the verified client certificate.
struct Peer {
  std::string role;     // "home", "node", "controller"
  std::string name;     // user@host for a home, the node's name for a node
  std::string address;
};

class Server {
 public:
  using UnaryHandler = std::function<void(const Peer&, std::string request, std::function<void(Result<std::string>)> reply)>;
  // Takes the stream; the returned handler gets its callbacks, starting after this returns. It must outlive the stream.
  // An error refuses the stream.
  using StreamHandler = std::function<Result<Stream::Handler*>(const Peer&, std::unique_ptr<Stream>)>;

  static std::unique_ptr<Server> Create(const Credentials& mine);
  virtual ~Server() = default;   // stops, waits for running callbacks
  // Before Start.
  virtual void Unary(const std::string& method, UnaryHandler handler) = 0;
  virtual void Streaming(const std::string& method, StreamHandler handler) = 0;
  // `address` is host:port, port 0 picks one; returns the port in use.
  virtual Result<int> Start(const std::string& address) = 0;
};

}  // namespace vrun::rpc
