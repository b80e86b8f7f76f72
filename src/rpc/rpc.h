// SPDX-License-Identifier: Apache-2.0
// gRPC between the daemons, without its headers: messages are serialized protobufs, methods are
// "/vrun.v1.Service/Name".
//
// Any gRPC implementation can talk to it: the schemas are in proto/, the transport is plain gRPC over mTLS. Callbacks
// run on gRPC's threads, one at a time per stream; they must not block. Post to an EventLoop to get home. A callback
// may destroy the stream that it belongs to, but neither the channel nor the server.
//
// An Error given to a reply or to Cancel arrives at the other side with its code and text (not its errno). Failures of
// the connection itself are kUnavailable and name the address.
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
    // Last callback. An orderly end by the other side is Code::kOk with an empty message; a local Cancel gives its own
    // reason back.
    virtual void OnClosed(Error reason) = 0;
  };
  static constexpr size_t kHighWater = 4u << 20;
  static constexpr size_t kLowWater = 1u << 20;

  // No callback runs any more once the destructor has returned. After Finish what was queued still goes out; without it
  // the stream is cancelled.
  virtual ~Stream() = default;
  // Any thread; queues without bound: a sender looks at queued_bytes(). Dropped after the stream has closed.
  virtual void Send(std::string message) = 0;
  // Overtakes what was sent with Send and is still queued; in order among themselves.
  virtual void SendUrgent(std::string message) = 0;
  virtual size_t queued_bytes() const = 0;
  // Nothing more from this end. The other side gets everything that was sent; a server's stream then ends, a client's
  // ends when the server has sent what it had queued by then. Both sides see OnClosed(kOk).
  virtual void Finish() = 0;
  // Tears down at once; what is queued is lost.
  virtual void Cancel(Error reason) = 0;
};

// A client's connection, its own (nothing is shared between two Dials). Reconnects by itself with a back-off of 50 ms
// to 2 s; keepalive notices a silent peer within about 10 s. While there is no connection calls and streams fail with
// kUnavailable, after the attempt that is under way.
class Channel {
 public:
  // `peer` is the role that the other side's certificate must have ("controller", "node"). Connects in the background;
  // an error means that the certificate cannot be used (expired, not of this CA, key does not match).
  static Result<std::unique_ptr<Channel>> Dial(const std::string& address, const Credentials& mine,
                                               const std::string& peer);
  // Unfinished calls are answered and open streams closed with kAborted before the destructor returns; Stream objects
  // stay valid.
  virtual ~Channel() = default;
  // `timeout_micros` 0: no limit but the connection's. `done` is called exactly once.
  virtual void Call(const std::string& method, std::string request, int64_t timeout_micros,
                    std::function<void(Result<std::string>)> done) = 0;
  // Never fails at once: a stream that cannot be opened is closed with the reason. `handler` must outlive the stream;
  // its callbacks may run before this returns.
  virtual std::unique_ptr<Stream> OpenStream(const std::string& method, Stream::Handler* handler) = 0;
  virtual const std::string& address() const = 0;
  // The last attempt to connect failed. A call made now fails with that at once, until the next attempt, up to 2 s
  // later; whoever knows that the other side may be back dials anew.
  virtual bool failing() const = 0;
};

// Who called: from the verified client certificate.
struct Peer {
  std::string role;  // "home", "node", "controller"
  std::string name;  // user@host for a home, the node's name for a node
  std::string address;
};

class Server {
 public:
  using UnaryHandler =
      std::function<void(const Peer&, std::string request, std::function<void(Result<std::string>)> reply)>;
  // `reply` is called at most once, by any thread, now or later; dropping it without a call answers kAborted.
  // Takes the stream; the returned handler gets its callbacks, starting after this returns. It must outlive the stream.
  // An error refuses the stream.
  using StreamHandler = std::function<Result<Stream::Handler*>(const Peer&, std::unique_ptr<Stream>)>;

  static std::unique_ptr<Server> Create(const Credentials& mine);
  // Stops: open streams are cancelled and closed (their Stream objects stay valid), waits for running callbacks. Not
  // from within a callback.
  virtual ~Server() = default;
  // Before Start. Handlers run on gRPC's threads, several at a time.
  virtual void Unary(const std::string& method, UnaryHandler handler) = 0;
  virtual void Streaming(const std::string& method, StreamHandler handler) = 0;
  // `address` is host:port, port 0 picks one; returns the port in use. Clients without a certificate of this CA that
  // names a role are refused.
  virtual Result<int> Start(const std::string& address) = 0;
};

}  // namespace vrun::rpc
