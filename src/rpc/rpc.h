// SPDX-License-Identifier: Apache-2.0
// gRPC between the daemons, without its headers: messages are serialized protobufs, methods are
// "/vrun.v1.Service/Name".
//
// Any gRPC implementation can talk to it: the schemas are in proto/, the transport is plain gRPC over mTLS. Callbacks
// run on gRPC's threads, one at a time per stream, and must not block: Post to an EventLoop. A callback may destroy its
// own stream, but neither the channel nor the server.
//
// An Error given to a reply or to Cancel reaches the other side with its code and text, without its errno. Failures of
// the connection itself are kUnavailable and name the address.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
    // queued_bytes() fell to kLowWater after it had exceeded kHighWater.
    virtual void OnWritable() {}
    // Last callback. A Finish by the other side gives Code::kOk with an empty message; a local Cancel gives its own
    // reason.
    virtual void OnClosed(Error reason) = 0;
  };
  static constexpr size_t kHighWater = 4u << 20;
  static constexpr size_t kLowWater = 1u << 20;

  // No callback runs after the destructor has returned. After Finish, queued messages are still sent; without Finish
  // the stream is cancelled.
  virtual ~Stream() = default;
  // Any thread. The queue is unbounded: senders must check queued_bytes(). Dropped after the stream has closed.
  virtual void Send(std::string message) = 0;
  // Sent before messages still queued by Send; in order among themselves.
  virtual void SendUrgent(std::string message) = 0;
  virtual size_t queued_bytes() const = 0;
  // Ends sending. The other side gets everything that was sent. A server's stream then ends; a client's ends when the
  // server has sent what it had queued by then. Both sides see OnClosed(kOk).
  virtual void Finish() = 0;
  // Closes at once; queued messages are lost.
  virtual void Cancel(Error reason) = 0;
};

// The other side, from its verified certificate.
struct Peer {
  std::string role;     // "home", "node", "controller"
  std::string name;     // user@host for a home, the node's name for a node
  std::string address;  // of a caller
};

// A client's own connection (two Dials share nothing). Reconnects automatically with a back-off of 50 ms to 2 s;
// keepalive detects a silent peer within about 10 s, within 3 s where there are several addresses. While disconnected,
// calls and streams fail with kUnavailable after the connection attempt in progress.
class Channel {
 public:
  // `peer` is the role that the other side's certificate must have ("controller", "node"). Connects in the background.
  // An error means that our certificate is unusable (expired, not from this CA, key does not match). With neither
  // certificate nor key, only what the server opens to strangers can be called. `address`: HOST:PORT, or several with
  // commas between, each with a numeric IPv4 address: the first that answers is taken, again after each loss.
  // `admit`: asked about the other side of each new connection; false ends it. Any thread.
  static Result<std::unique_ptr<Channel>> Dial(const std::string& address, const Credentials& mine,
                                               const std::string& peer,
                                               std::function<bool(const Peer&)> admit = nullptr);
  // Before the destructor returns, unfinished calls are answered and open streams closed with kAborted; Stream objects
  // stay valid.
  virtual ~Channel() = default;
  // `timeout_micros` 0: only the connection's limits. `done` is called exactly once.
  virtual void Call(const std::string& method, std::string request, int64_t timeout_micros,
                    std::function<void(Result<std::string>)> done) = 0;
  // Never fails directly: a stream that cannot be opened is closed with the reason. `handler` must outlive the stream;
  // its callbacks may run before this returns.
  virtual std::unique_ptr<Stream> OpenStream(const std::string& method, Stream::Handler* handler) = 0;
  virtual const std::string& address() const = 0;
  // Whether the last connection attempt failed. Calls then fail at once until the next attempt, up to 2 s later. A
  // caller who expects the other side to be back should Dial again.
  virtual bool failing() const = 0;
};

class Server {
 public:
  using UnaryHandler =
      std::function<void(const Peer&, std::string request, std::function<void(Result<std::string>)> reply)>;
  // `reply` is called at most once, by any thread, now or later; dropping it without a call answers kAborted.
  // StreamHandler takes the stream. The returned handler gets its callbacks, starting after the return, and must
  // outlive the stream. An error refuses the stream.
  using StreamHandler = std::function<Result<Stream::Handler*>(const Peer&, std::unique_ptr<Stream>)>;

  static std::unique_ptr<Server> Create(const Credentials& mine);
  // Cancels and closes open streams (their Stream objects stay valid), and waits for running callbacks. Not from within
  // a callback.
  virtual ~Server() = default;
  // Call before Start. Handlers run on gRPC's threads, several at a time.
  virtual void Unary(const std::string& method, UnaryHandler handler) = 0;
  virtual void Streaming(const std::string& method, StreamHandler handler) = 0;
  // A unary method for callers without a certificate; their Peer has no role and no name.
  virtual void Stranger(const std::string& method, UnaryHandler handler) = 0;
  // Asked at the beginning of each call of a caller with a certificate, before its request is read; an error refuses
  // the call. Any thread.
  virtual void Admit(std::function<Status(const Peer&)> admit) = 0;
  // Cancels the open calls of callers for whom this is true. Any thread, not from within a callback.
  virtual void EndCalls(const std::function<bool(const Peer&)>& of) = 0;
  // All methods, in alphabetical order.
  virtual std::vector<std::string> methods() const = 0;
  // `address` is host:port; port 0 picks one. Returns the port in use. Refuses clients without a certificate from this
  // CA that names a role, in all methods but those of Stranger.
  virtual Result<int> Start(const std::string& address) = 0;
};

}  // namespace vrun::rpc
