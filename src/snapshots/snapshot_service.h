// SPDX-License-Identifier: Apache-2.0
// Serves homes' requests to the snapshot store (proto/snapshots.proto). The certificate identifies the caller: a home
// can access only its owner's snapshots.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/s3.pb.h"
#include "proto/vault.pb.h"
#include "rpc/rpc.h"
#include "snapshots/away/stand_in.h"

namespace vrun::snapshots {

// The S3 store that holds the snapshots; the controller has its keys.
struct VaultSettings {
  std::string bucket;  // "": none
  std::string controller;
  uint64_t disk_bytes = 0;  // limit per owner (VaultPlace)
};

class Service {
 public:
  // `directory`: holds all state. The loop must run on the thread that created it, and must outlive this.
  Service(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine, VaultSettings vault);
  ~Service();

  // Returns the port in use.
  Result<int> Start(const std::string& listen);

 private:
  struct Owner;
  class Conversation;
  class ContentDoor;
  using OwnerPtr = std::shared_ptr<Owner>;

  // Any thread; starts to load the snapshots of a new owner.
  Result<OwnerPtr> OwnerOf(const std::string& name);
  void Keep(std::shared_ptr<rpc::Stream::Handler> handler);
  void Drop(const std::shared_ptr<rpc::Stream::Handler>& handler);
  // Asks the controller; blocks.
  Result<v1::PresignReply> Presign(const v1::VaultPresign& request);
  void FindRoot(const std::string& owner_name, const v1::SnapshotReference& reference, StandIn::Found found);
  void Tick();

  EventLoop* const loop_;
  const std::string directory_;
  const std::string store_id_;
  const rpc::Credentials mine_;
  const VaultSettings vault_;
  std::unique_ptr<rpc::Channel> controller_;  // null: no vault
  std::unique_ptr<StandIn> stand_in_;         // null: no vault
  int64_t housekept_ = 0;                     // used by the loop
  Mutex mu_;
  std::map<std::string, OwnerPtr> owners_ VRUN_GUARDED_BY(mu_);
  std::set<std::shared_ptr<rpc::Stream::Handler>> handlers_ VRUN_GUARDED_BY(mu_);  // of open streams
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace vrun::snapshots
