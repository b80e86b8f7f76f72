// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/hash/secret.h"
#include "base/log.h"
#include "node/source/peer_proof.h"

namespace vrun::node {
namespace {

constexpr int kStrikes = 2;
constexpr int64_t kOneStrikeMicros = 200'000;  // failures within this time count as one
constexpr int64_t kLateFirst = 1'000'000, kLateLast = 30'000'000;
constexpr int64_t kBrokeFirst = 500'000, kBrokeLast = 30'000'000;
constexpr int64_t kLiedFirst = 60'000'000, kLiedLast = 3600'000'000;

}  // namespace

void PeerHealth::Rest(int64_t now, int64_t first, int64_t last) {
  if (Down(now)) return;
  down_until_ = now + std::min(first << std::min(failures_, 12), last);
  ++failures_;
}

void PeerHealth::Late(int64_t now) {
  if (now - struck_ < kOneStrikeMicros) return;
  struck_ = now;
  if (++strikes_ >= kStrikes) Rest(now, kLateFirst, kLateLast);
}

void PeerHealth::Stalled(int64_t now) { Rest(now, kLateFirst, kLateLast); }

void PeerHealth::Broke(int64_t now) { Rest(now, kBrokeFirst, kBrokeLast); }

void PeerHealth::Lied(int64_t now) {
  down_until_ = 0;
  Rest(now, kLiedFirst, kLiedLast);
}

PeerClient::~PeerClient() { Close(); }

void PeerClient::Close() {
  std::shared_ptr<Link> link;
  std::map<uint64_t, Asked> asked;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    link = std::move(link_);
    asked.swap(asked_);
  }
  link.reset();
  for (auto& [id, a] : asked) a.answered(Error(Code::kAborted, "the node is no longer a peer"));
}

Result<std::shared_ptr<PeerClient::Link>> PeerClient::PrepareLocked() {
  auto link = std::make_shared<Link>();
  VRUN_ASSIGN(link->nonce, RandomSecret(16));
  VRUN_ASSIGN(link->channel, rpc::Channel::Dial(options_.address, options_.credentials, "node"));
  link->client = shared_from_this();
  link_ = link;
  return link;
}

void PeerClient::Open(const std::shared_ptr<Link>& link) {
  // Without the lock: the stream may be closed on this thread before this returns.
  auto stream = link->channel->OpenStream("/vrun.v1.Peer/Exchange", link.get());
  v1::PeerRequest hello;
  hello.mutable_hello()->set_home_id(options_.home_id);
  hello.mutable_hello()->set_nonce(link->nonce);
  const Digest proof =
      PeerProof(options_.secret, PeerSide::kAsker, options_.home_id, options_.asker, options_.owner, link->nonce);
  hello.mutable_hello()->set_proof(std::string(proof.view()));
  {
    MutexLock lock(mutex_);
    link->stream = std::move(stream);
    if (link_ == link) return link->stream->Send(hello.SerializeAsString());
  }
  timers_->After(0, [link] {});  // it is over already
}

uint64_t PeerClient::Ask(const v1::PeerRequest& question, Answered answered) {
  std::optional<Error> error;
  std::shared_ptr<Link> opened;
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (closed_) error = Error(Code::kAborted, "the node is no longer a peer");
    if (!error && !link_) {
      auto link = PrepareLocked();
      if (link)
        opened = *link;
      else
        error = link.error();
    }
    if (!error) {
      id = next_id_++;
      Asked& asked = asked_[id];
      asked.request = question;
      asked.request.set_id(id);
      asked.answered = std::move(answered);
      asked.sent = link_->proved;
      if (asked.sent) link_->stream->Send(asked.request.SerializeAsString());
    }
  }
  if (error) answered(*std::move(error));
  if (opened) Open(opened);
  return id;
}

bool PeerClient::proved() {
  MutexLock lock(mutex_);
  return link_ && link_->proved;
}

void PeerClient::Cancel(uint64_t id) {
  Answered dropped;  // freed without the lock
  MutexLock lock(mutex_);
  const auto it = asked_.find(id);
  if (it == asked_.end()) return;
  dropped = std::move(it->second.answered);
  const bool sent = it->second.sent;
  asked_.erase(it);
  if (!sent || !link_) return;
  v1::PeerRequest request;
  request.set_id(next_id_++);
  request.mutable_cancel()->set_id(id);
  link_->stream->Send(request.SerializeAsString());
}

void PeerClient::OnMessage(Link* link, const std::string& message) {
  v1::PeerReply reply;
  const bool parses = reply.ParseFromString(message);
  heard_.store(MonotonicMicros(), std::memory_order_relaxed);
  doubt_.Heard();
  Answered answered;
  std::vector<Answered> failed, wait;
  const Error broken(Code::kCorrupt, "a peer that breaks the rules");
  {
    MutexLock lock(mutex_);
    if (link_.get() != link) return;
    if (!link->proved) {
      const Digest proof =
          PeerProof(options_.secret, PeerSide::kOwner, options_.home_id, options_.asker, options_.owner, link->nonce);
      if (parses && link->stream && reply.has_hello() && SameSecret(reply.hello().proof(), proof.view())) {
        link->proved = true;
        for (auto& [id, asked] : asked_) {
          asked.sent = true;
          link->stream->Send(asked.request.SerializeAsString());
        }
        return;
      }
      DropLocked(broken, &failed);
    } else if (!parses) {
      DropLocked(broken, &failed);
    } else if (reply.id() == 0 && reply.has_waiting()) {
      for (const auto& [id, asked] : asked_) wait.push_back(asked.answered);
    } else if (const auto it = asked_.find(reply.id()); it != asked_.end()) {
      answered = it->second.answered;
      if (!reply.has_waiting()) asked_.erase(it);
    }  // otherwise it was cancelled
  }
  for (auto& fail : failed) fail(broken);
  for (auto& still : wait) still(reply);
  if (answered) answered(std::move(reply));
}

void PeerClient::OnClosed(Link* link, const Error& reason) {
  std::vector<Answered> failed;
  {
    MutexLock lock(mutex_);
    if (link_.get() != link) return;
    LogInfo("stream to peer {}: {}", Escape(options_.owner), Escape(reason.message()));
    DropLocked(reason, &failed);
  }
  for (auto& fail : failed) fail(Error(Code::kUnavailable, reason.message()));
}

void PeerClient::DropLocked(const Error& reason, std::vector<Answered>* failed) {
  for (auto& [id, asked] : asked_) failed->push_back(std::move(asked.answered));
  asked_.clear();
  if (link_->stream) link_->stream->Cancel(reason);
  timers_->After(0, [link = std::move(link_)] {});
  link_.reset();
}

}  // namespace vrun::node
