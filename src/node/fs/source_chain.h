// SPDX-License-Identifier: Apache-2.0
// Assembles the sources of content of one tenant's views. They are asked in order: the pool's S3 store, other nodes,
// home. Home's stream is at the bottom, the backend shared by all views at the top; requests from other nodes come in
// beside them.
//
// Built in two steps, because home may connect as soon as our address is known, and other nodes are told that address.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "node/peers/peer_server.h"
#include "node/peers/peer_source.h"
#include "node/s3/s3_tier.h"
#include "node/s3/s3_urls.h"
#include "node/s3/s3_writer.h"
#include "node/source/content_source.h"
#include "node/source/tiered_source.h"
#include "rpc/rpc.h"
#include "vfs/content/backend.h"

namespace vrun::v1 {
class CacheStat;
class PresignRequest;
class PresignReply;
}  // namespace vrun::v1

namespace vrun::node {

class SourceChain {
 public:
  // Asks the agent for URLs of the pool's S3 store. Any thread.
  using Presign = std::function<void(const v1::PresignRequest&)>;

  // `home_is_back` runs on any thread when home has a stream (again); respond with HomeIsBack on the owner's thread.
  SourceChain(const std::string& home_id, std::function<void()> home_is_back);

  // Registers the calls that home and other nodes make. Call before the server starts.
  // `tenant`: the name of the tenant (node/tenant.h). Content is taken from homes of its user only.
  void Register(rpc::Server* server, const std::string& tenant);
  // Starts the rest. `backend` does not need home's id. `store` must outlive this. `presign` null: the pool has no S3
  // store.
  void Start(PeerSourceOptions peers, vfs::BackendOptions backend, store::Store* store, Presign presign);

  // Any thread.
  ContentSource& home() { return *home_; }
  // After Start; any thread.
  const std::shared_ptr<vfs::Backend>& backend() const { return backend_; }
  void Describe(v1::CacheStat* stat) const;
  // Totals since the start; the difference of two calls is the traffic of a run.
  RunTraffic Traffic() const;
  void Presigned(const v1::PresignReply& answer);

  // Call after Start, always on the same thread.
  void HomeIsBack();
  // A command has ended: flushes pending writes to the S3 store.
  void RunEnded();
  // Whether jobs of this home run here.
  void SetReads(bool reads) { peer_server_->SetReads(reads); }
  // Call about once a second.
  void Tick(int64_t now_micros);

 private:
  const std::string home_id_;
  std::atomic<bool> watches_hidden_{false};
  const std::unique_ptr<ContentSource> home_;
  std::unique_ptr<PeerSource> peers_;  // over home and other nodes
  // null if the pool has no S3 store
  std::unique_ptr<S3Urls> s3_urls_;
  std::unique_ptr<S3Tier> s3_tier_;
  std::unique_ptr<S3Writer> s3_writer_;
  std::unique_ptr<TieredSource> tiered_;
  std::shared_ptr<vfs::Backend> backend_;
  std::unique_ptr<PeerServer> peer_server_;
  std::atomic<bool> ready_{false};  // requests of other nodes are accepted
};

}  // namespace vrun::node
