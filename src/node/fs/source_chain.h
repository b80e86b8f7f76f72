// SPDX-License-Identifier: Apache-2.0
// Where the views of one tenant get their content, put together: asked in turn are the pool's S3 store, other nodes,
// home. Below it is home's stream, above it the backend that all views share; beside it what other nodes ask of us.
//
// Built in two steps, because home may dial in as soon as our address is known, and other nodes are told that address.
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

  // `home_is_back`: home has a stream (again); to be answered by HomeIsBack on the owner's thread. Any thread.
  SourceChain(const std::string& home_id, std::function<void()> home_is_back);

  // The calls that home and other nodes make. Before the server starts.
  void Register(rpc::Server* server);
  // The rest. `backend` needs no home's id. `store` outlives this. `presign` null: the pool has no S3 store.
  void Start(PeerSourceOptions peers, vfs::BackendOptions backend, store::Store* store, Presign presign);

  // Any thread.
  ContentSource& home() { return *home_; }
  // After Start; any thread.
  const std::shared_ptr<vfs::Backend>& backend() const { return backend_; }
  void Describe(v1::CacheStat* stat) const;
  // Of all time; what came during a run is the difference.
  RunTraffic Traffic() const;
  void Presigned(const v1::PresignReply& answer);

  // After Start, on one thread.
  void HomeIsBack();
  // A command has ended: what is to be written to the S3 store is written now.
  void RunEnded();
  // About once a second.
  void Tick(int64_t now_micros);

 private:
  const std::unique_ptr<ContentSource> home_;
  std::unique_ptr<PeerSource> peers_;  // home and other nodes
  // Of the pool's S3 store; null where it has none.
  std::unique_ptr<S3Urls> s3_urls_;
  std::unique_ptr<S3Tier> s3_tier_;
  std::unique_ptr<S3Writer> s3_writer_;
  std::unique_ptr<TieredSource> tiered_;
  std::shared_ptr<vfs::Backend> backend_;
  std::unique_ptr<PeerServer> peer_server_;
  std::atomic<bool> ready_{false};  // other nodes may come
};

}  // namespace vrun::node
