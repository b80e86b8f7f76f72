// SPDX-License-Identifier: Apache-2.0
// What homes ask of the snapshot store over the network (proto/snapshots.proto). Who asks is who the certificate says:
// a home reaches its owner's snapshots and no others.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "proto/s3.pb.h"
#include "proto/vault.pb.h"
#include "rpc/rpc.h"

namespace vrun::snapshots {

// The S3 store that keeps the snapshots; the controller has its keys.
struct VaultSettings {
  std::string bucket;  // "": none
  std::string controller;
  uint64_t disk_bytes = 0;  // of each owner (VaultPlace)
};

class Service {
 public:
  // `directory`: everything that is kept. The loop must run on the thread that made this, and outlives it.
  Service(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine, VaultSettings vault);
  ~Service();

  // Returns the port in use.
  Result<int> Start(const std::string& listen);

 private:
  struct Owner;
  class Conversation;
  class ContentDoor;
  using OwnerPtr = std::shared_ptr<Owner>;

  // Any thread; begins to load the snapshots of an owner that was not seen yet.
  Result<OwnerPtr> OwnerOf(const std::string& name);
  void Keep(std::shared_ptr<rpc::Stream::Handler> handler);
  void Drop(const std::shared_ptr<rpc::Stream::Handler>& handler);
  // Asks the controller, and blocks.
  Result<v1::PresignReply> Presign(const v1::VaultPresign& request);
  void Tick();

  EventLoop* const loop_;
  const std::string directory_;
  const std::string store_id_;
  const rpc::Credentials mine_;
  const VaultSettings vault_;
  std::unique_ptr<rpc::Channel> controller_;  // null: no vault
  int64_t housekept_ = 0;                     // the loop's
  std::mutex mu_;
  std::map<std::string, OwnerPtr> owners_;                    // guarded by mu_, as all below
  std::set<std::shared_ptr<rpc::Stream::Handler>> handlers_;  // of open streams
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace vrun::snapshots
