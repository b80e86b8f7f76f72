// SPDX-License-Identifier: Apache-2.0
// Listens for a server, and bounds the connections of whom nobody knows who they are.
//
// A connection is a stranger's until a call with a certificate came on it (Known) or, where TLS lets nobody in without
// one, until a handshake would be over. Only strangers are counted. When one more comes, the oldest stranger of its
// source gives way, or of the source that has most: whoever keeps connections open takes places only from himself. A
// new connection is never refused, so nobody who has a certificate is kept out. Source: an IPv4 address, or the first
// 64 bits of an IPv6 address.
//
// gRPC owns the connections and does not tell when it closes one. They are remembered as a descriptor's number with
// the socket's cookie, and looked at when places are short.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::rpc {

class Acceptor {
 public:
  struct Bounds {
    size_t all = 512;
    size_t of_source = 256;
    int64_t micros = 0;  // from then on it is no stranger's; 0: not before Known
    // With less where the process may have few descriptors: a quarter of them.
    static Bounds OfProcess(int64_t micros);
  };

  // `address`: HOST:PORT; port 0 picks one. 0.0.0.0 and :: are all addresses of both kinds.
  static Result<std::unique_ptr<Acceptor>> Listen(const std::string& address);
  ~Acceptor() { Stop(); }
  // Ends the thread; after it returns, no connection is taken. Not from `take`.
  void Stop();
  int port() const { return port_; }

  // Once. `take`: owns the descriptor from then on. Called by the acceptor's thread.
  void Start(Bounds bounds, std::function<void(int fd)> take);
  // Any thread. Who this is is known. `peer` as gRPC writes it: "ipv4:1.2.3.4:567", "ipv6:%5B::1%5D:567".
  void Known(const std::string& peer);

 private:
  struct Origin {
    std::array<uint8_t, 16> address{};  // IPv4: mapped
    uint16_t port = 0;
    auto operator<=>(const Origin&) const = default;
    std::array<uint8_t, 16> Source() const;
  };
  using Source = std::array<uint8_t, 16>;
  struct Connection {
    Origin origin;
    Source source;
    int fd = -1;          // gRPC's, or another one by now
    uint64_t cookie = 0;  // of the socket
    int64_t since_us = 0;
  };
  using Connections = std::map<uint64_t, Connection>;  // by arrival

  Acceptor() = default;
  static std::optional<Origin> Parse(std::string_view peer);
  void Run();
  void Accept(int listener);
  void AwaitLeavers();
  void Add(int fd, const Origin& origin);
  void MakeRoom(const Source& source) VRUN_REQUIRES(mutex_);
  void ForgetOthers() VRUN_REQUIRES(mutex_);
  void Evict(Connections::iterator which) VRUN_REQUIRES(mutex_);
  Connections::iterator Forget(Connections::iterator which) VRUN_REQUIRES(mutex_);

  std::vector<UniqueFd> listeners_;
  int port_ = 0;
  UniqueFd stop_;  // an eventfd
  Bounds bounds_;
  std::function<void(int)> take_;
  std::thread thread_;

  // Of the thread.
  std::vector<std::pair<int, uint64_t>> leavers_;  // shut down, and perhaps not yet closed by gRPC
  int64_t told_us_ = 0;

  Mutex mutex_;
  uint64_t arrivals_ VRUN_GUARDED_BY(mutex_) = 0;
  Connections strangers_ VRUN_GUARDED_BY(mutex_);
  std::map<Origin, uint64_t> by_origin_ VRUN_GUARDED_BY(mutex_);
  std::map<Source, size_t> of_source_ VRUN_GUARDED_BY(mutex_);  // those that have some
  std::atomic<size_t> count_ = 0;                               // strangers_.size(), for calls: mostly 0
};

}  // namespace vrun::rpc
