// SPDX-License-Identifier: Apache-2.0
#include "node/fs/source_chain.h"

#include <utility>

#include "base/clock.h"
#include "node/tenant.h"
#include "proto/cache.pb.h"
#include "proto/s3.pb.h"
#include "vfs/content/withheld.h"
#include "vfs/content/write_behind.h"

namespace vrun::node {

SourceChain::SourceChain(const std::string& home_id, std::function<void()> home_is_back)
    : home_id_(home_id),
      home_(std::make_unique<ContentSource>(ContentSourceOptions{.home_id = home_id}, std::move(home_is_back))) {}

void SourceChain::Register(rpc::Server* server, const std::string& tenant) {
  server->Streaming(
      "/vrun.v1.Content/Serve",
      [this, tenant](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        if (peer.role != "home" && peer.role != "snapshots") {
          return Error(Code::kDenied, "content comes from a home or from the snapshot store only");
        }
        // A token that got out is of no use with another certificate.
        if (peer.role == "home" && Tenant{peer.name, home_id_}.Key() != tenant) {
          return Error(Code::kDenied, "content for these jobs comes from their user's home only");
        }
        return home_->Accept(std::move(stream));
      });
  server->Streaming(
      "/vrun.v1.Peer/Exchange",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        // Nobody gets this address before home does.
        if (!ready_) return Error(Code::kUnavailable, "the file system server starts");
        return peer_server_->Accept(peer, std::move(stream));
      });
}

void SourceChain::Start(PeerSourceOptions peers, vfs::BackendOptions backend, store::Store* store, Presign presign) {
  backend.home_id = peers.home_id;
  peers_ = std::make_unique<PeerSource>(std::move(peers), home_.get());
  vfs::Source* top = peers_.get();
  if (presign) {
    s3_urls_ = std::make_unique<S3Urls>(std::move(presign));
    s3_tier_ = std::make_unique<S3Tier>(s3_urls_.get());
    const auto when_stored = [this](std::function<void()> task) {
      if (!backend_->write_behind().Post(0, task)) task();
    };
    s3_writer_ = std::make_unique<S3Writer>(store, s3_tier_.get(), S3WriterOptions{.when_stored = when_stored});
    tiered_ = std::make_unique<TieredSource>(peers_.get(), s3_tier_.get(), s3_writer_.get());
    top = tiered_.get();
  }
  backend_ = vfs::Backend::Create(std::move(backend), top, store);
  backend_->withheld().OnAsked([home = home_.get()](const std::string& path) { home->SendMissed(path); });
  peer_server_ = std::make_unique<PeerServer>(peers_.get(), backend_.get());
  peers_->OnUpdate([this] { peer_server_->Updated(); });
  ready_ = true;
}

void SourceChain::Describe(v1::CacheStat* stat) const {
  stat->set_fetched_bytes(home_->stats().wire_bytes);
  const PeerStats peers = peers_->stats();
  stat->set_peers(peers.mates);
  stat->set_peer_fetched_bytes(peers.fetched_bytes);
  stat->set_peer_served_bytes(peers.served_bytes);
  stat->set_peer_lies(peers.lies);
  stat->set_peer_fallbacks(peers.fallbacks);
  if (!s3_tier_) return;
  s3_tier_->Describe(stat->mutable_s3());
  stat->mutable_s3()->set_waiting_objects(s3_writer_->waiting());
}

RunTraffic SourceChain::Traffic() const {
  const ContentSourceStats home = home_->stats();
  RunTraffic traffic{
      .home_bytes = home.wire_bytes, .peer_bytes = peers_->stats().fetched_bytes, .link_busy_micros = home.busy_micros};
  if (s3_tier_) {
    v1::S3Stat s3;
    s3_tier_->Describe(&s3);
    traffic.s3_bytes = s3.read_bytes();
  }
  return traffic;
}

void SourceChain::Presigned(const v1::PresignReply& answer) {
  if (s3_urls_) s3_urls_->Answered(answer, MonotonicMicros());
}

void SourceChain::HomeIsBack() {
  backend_->HomeIsBack();
  peers_->HomeIsBack();
  if (watches_hidden_.exchange(true)) return;
  home_->WatchHidden(
      [weak = std::weak_ptr(backend_)](HiddenNames names) {
        if (const auto backend = weak.lock()) backend->withheld().Set(std::move(names));
      },
      [this] { watches_hidden_ = false; });
}

void SourceChain::RunEnded() {
  if (s3_writer_) s3_writer_->Hurry();
}

void SourceChain::Tick(int64_t now_micros) {
  home_->Tick(now_micros);
  if (s3_urls_) s3_urls_->Tick(now_micros);
  peer_server_->Tick(now_micros);
}

}  // namespace vrun::node
