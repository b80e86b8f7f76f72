// SPDX-License-Identifier: Apache-2.0
#include "home/links/node_links.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "home/serve/content_server.h"
#include "home/serve/requests/content_session.h"
#include "people/members.h"

namespace vrun::home {
namespace {

// Two per node that runs a job: more than a pool has. A dropped channel closes its streams.
constexpr size_t kMaxIdleChannels = 4096;
constexpr int64_t kIdleMicros = 15 * 60 * 1'000'000LL;
constexpr int64_t kFirstRetryMicros = 50'000;
constexpr int64_t kLastRetryMicros = 2'000'000;
// After a job whose end home did not see, its node may still send what it wrote.
constexpr int64_t kLeftMicros = 60'000'000;
// Home may hear of a job a little after its node, which asks at once.
constexpr int64_t kHeldMicros = 2'000'000;

std::string KeyOf(const std::string& node, const std::string& address) { return node + "\n" + address; }

}  // namespace

// Filled by gRPC's threads.
struct NodeLinks::Met {
  Mutex mutex;
  std::map<std::string, std::string> names VRUN_GUARDED_BY(mutex);  // by KeyOf
};

// The content stream to one file system server, and who needs it.
class NodeLinks::ContentLink {
 public:
  ContentLink(NodeLinks* links, std::vector<std::string> addresses) : links_(links), addresses_(std::move(addresses)) {}
  ~ContentLink() {
    links_->loop_->Cancel(retry_);
    links_->loop_->Cancel(left_);
    links_->loop_->Cancel(held_);
    Drop();
  }

  void Add(const Use* use, ContentJob job, bool expected) {
    node_ = job.placement.node();
    (expected ? expected_ : uses_)[use] = std::move(job);
    Tell();
    if (!expected && !core_ && retry_ == 0) Open();
  }
  void Remove(const Use* use, bool all_home) {
    const bool ran = uses_.erase(use) > 0;
    expected_.erase(use);
    if (ran && !all_home) left_until_ = MonotonicMicros() + kLeftMicros;
    Tell();
  }
  uint64_t sent_bytes() const { return sent_before_ + (core_ ? core_->session->sent_bytes() : 0); }
  int64_t shown_micros() const { return std::max(shown_before_, core_ ? core_->session->shown_micros() : 0); }
  bool idle() const { return uses_.empty() && expected_.empty() && !core_ && retry_ == 0; }
  const std::string& node() const { return node_; }
  bool connected() const { return core_ != nullptr; }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  // Called by gRPC's threads. Requests go directly to the session, the end goes to the loop.
  struct Core : rpc::Stream::Handler {
    void OnMessage(std::string message) override { session->OnMessage(message); }
    void OnWritable() override { session->OnWritable(); }
    void OnClosed(Error reason) override {
      loop->Post([alive = alive, link = link, reason = std::move(reason)] {
        if (*alive) link->Closed(reason);
      });
    }
    EventLoop* loop = nullptr;
    ContentLink* link = nullptr;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
    std::shared_ptr<ContentSession> session;
    std::unique_ptr<rpc::Stream> stream;
  };

  void Open() {
    const std::string& address = addresses_[next_++ % addresses_.size()];
    auto channel = links_->ChannelTo(node_, address);
    if (!channel) return Later(channel.error());
    core_ = std::make_unique<Core>();
    core_->loop = links_->loop_;
    core_->link = this;
    core_->session = std::make_shared<ContentSession>(links_->content_);
    core_->session->SetNode(node_);
    core_->session->OnWithheld([loop = links_->loop_, alive = core_->alive, this](const std::string& path) {
      loop->Post([this, alive, path] {
        if (!*alive) return;
        for (const auto& [use, job] : uses_) {
          if (job.withheld) job.withheld(path);
        }
      });
    });
    core_->session->OnHeld([loop = links_->loop_, alive = core_->alive, this] {
      loop->Post([this, alive] {
        if (*alive) EndHeldLater();
      });
    });
    Tell();
    core_->stream = (*channel)->OpenStream("/vrun.v1.Content/Serve", core_.get());
    // The node sends no request before it has seen Hello.
    core_->session->Start(core_->stream.get());
    v1::ContentReply hello;
    hello.set_last(true);
    const v1::Placement& placement = uses_.begin()->second.placement;
    hello.mutable_hello()->set_home_id(links_->home_id_);
    hello.mutable_hello()->set_token(placement.token());
    hello.mutable_hello()->set_job(placement.job());
    hello.mutable_hello()->set_attempt(placement.attempt());
    opened_us_ = MonotonicMicros();
    core_->stream->Send(hello.SerializeAsString());
  }

  void Drop() {
    if (!core_) return;
    *core_->alive = false;
    core_->session->Close();
    sent_before_ += core_->session->sent_bytes();
    shown_before_ = shown_micros();
    core_->stream.reset();
    core_.reset();
  }

  void Closed(const Error& reason) {
    Drop();
    if (MonotonicMicros() - opened_us_ > kLastRetryMicros) delay_ = kFirstRetryMicros;
    Later(reason);
  }

  void Later(const Error& reason) {
    if (uses_.empty()) return;
    LogInfo("content stream to {}: {}: opened again in {} ms", Escape(addresses_[0]), reason.message(), delay_ / 1000);
    retry_ = links_->loop_->After(delay_, [this] {
      retry_ = 0;
      if (!uses_.empty()) Open();
    });
    delay_ = std::min(delay_ * 2, kLastRetryMicros);
  }

  void EndHeldLater() {
    if (held_ != 0) return;
    held_ = links_->loop_->After(kHeldMicros, [this] {
      held_ = 0;
      if (core_ && core_->session->EndHeld(kHeldMicros)) EndHeldLater();
    });
  }

  // What the node may have now.
  void Tell() {
    if (!core_) return;
    Serves serves;
    for (const auto* jobs : {&uses_, &expected_}) {
      for (const auto& [use, job] : *jobs) {
        serves.any = true;
        serves.all = serves.all || job.serves.all;
        serves.live = serves.live || job.serves.live;
        serves.trees.insert(job.serves.trees.begin(), job.serves.trees.end());
      }
    }
    const int64_t left = serves.any ? 0 : left_until_ - MonotonicMicros();
    core_->session->SetTakesWrites(serves.any || left > 0);
    core_->session->SetServes(std::move(serves));
    links_->loop_->Cancel(std::exchange(left_, 0));
    if (left <= 0) return;
    left_ = links_->loop_->After(left, [this] {
      left_ = 0;
      Tell();
    });
  }

  NodeLinks* const links_;
  const std::vector<std::string> addresses_;
  std::string node_;
  size_t next_ = 0;
  std::map<const Use*, ContentJob> uses_, expected_;
  std::unique_ptr<Core> core_;
  EventLoop::TimerId retry_ = 0;
  EventLoop::TimerId left_ = 0;  // then no writes are taken until there is another job
  EventLoop::TimerId held_ = 0;  // until reads that nobody has a tree for are refused
  int64_t left_until_ = 0;       // monotonic
  int64_t delay_ = kFirstRetryMicros;
  int64_t opened_us_ = 0;
  uint64_t sent_before_ = 0;  // by earlier streams
  int64_t shown_before_ = 0;
};

class NodeLinks::Use : public NodeLinks::ContentUse {
 public:
  Use(NodeLinks* links, std::string key) : links_(links), key_(std::move(key)), sent_at_start_(Sent()) {}
  ~Use() override {
    auto it = links_->content_links_.find(key_);
    if (it == links_->content_links_.end()) return;
    it->second->Remove(this, all_home_);
    if (it->second->idle()) links_->content_links_.erase(it);
  }
  void AllHome() override { all_home_ = true; }
  uint64_t sent_bytes() const override { return Sent() - sent_at_start_; }
  bool connected() const override {
    const auto it = links_->content_links_.find(key_);
    return it != links_->content_links_.end() && it->second->connected();
  }
  int64_t shown_micros() const override {
    const auto it = links_->content_links_.find(key_);
    return it == links_->content_links_.end() ? 0 : it->second->shown_micros();
  }

 private:
  uint64_t Sent() const {
    auto it = links_->content_links_.find(key_);
    return it == links_->content_links_.end() ? 0 : it->second->sent_bytes();
  }
  NodeLinks* const links_;
  const std::string key_;
  const uint64_t sent_at_start_;
  bool all_home_ = false;
};

NodeLinks::NodeLinks(EventLoop* loop, ContentServer* content, std::string home_id, std::string role)
    : loop_(loop),
      content_(content),
      home_id_(std::move(home_id)),
      role_(std::move(role)),
      met_(std::make_shared<Met>()) {}

NodeLinks::~NodeLinks() { content_links_.clear(); }

void NodeLinks::UseCredentials(const rpc::Credentials& credentials) {
  const bool same = credentials.key == credentials_.key && credentials.ca == credentials_.ca;
  credentials_ = credentials;
  if (same) return;
  // Streams survive their channel; new ones use the new certificate.
  channels_.clear();
}

void NodeLinks::EndShutOut() {
  const people::Members members(credentials_.directory);
  std::vector<std::string> gone;
  {
    MutexLock lock(met_->mutex);
    for (const auto& [key, name] : met_->names) {
      if (members.IsRevoked(role_, name)) gone.push_back(key);
    }
    for (const std::string& key : gone) met_->names.erase(key);
  }
  for (const std::string& key : gone) {
    LogWarning("{} at {} was shut out of the cluster: the connection ends", role_,
               Escape(key.substr(key.find('\n') + 1)));
    channels_.erase(key);
  }
}

Result<rpc::Channel*> NodeLinks::ChannelTo(const std::string& node, const std::string& address) {
  const std::string key = KeyOf(node, address);
  auto it = channels_.find(key);
  // A restarted node or file system server listens at the same address: do not give the caller a channel that still
  // reports the old failure.
  if (it != channels_.end() && it->second.channel->failing()) {
    channels_.erase(it);
    it = channels_.end();
  }
  if (it == channels_.end()) {
    DropIdleChannels();
    auto admit = [met = met_, key, node, members = people::Members(credentials_.directory)](const rpc::Peer& peer) {
      if (!node.empty() && peer.role == "node" && peer.name != node) return false;
      if (members.IsRevoked(peer.role, peer.name)) return false;
      MutexLock lock(met->mutex);
      met->names[key] = peer.name;
      return true;
    };
    auto channel = rpc::Channel::Dial(address, credentials_, role_, std::move(admit));
    if (!channel) return channel.error().With(role_ + " at " + Escape(address));
    it = channels_.emplace(key, Connection{std::move(*channel), 0}).first;
  }
  it->second.used_us = MonotonicMicros();
  return it->second.channel.get();
}

// Every file system server has a new address; connections to dead ones would retry for ever.
void NodeLinks::DropIdleChannels() {
  std::set<std::string> needed;
  for (auto it = content_links_.begin(); it != content_links_.end();) {
    if (it->second->idle()) {
      it = content_links_.erase(it);
      continue;
    }
    for (const std::string& address : it->second->addresses()) needed.insert(KeyOf(it->second->node(), address));
    ++it;
  }
  int64_t now = MonotonicMicros();
  std::erase_if(channels_, [&](const auto& c) {
    bool old = now - c.second.used_us > kIdleMicros || channels_.size() > kMaxIdleChannels;
    return old && !needed.contains(c.first);
  });
  MutexLock lock(met_->mutex);
  std::erase_if(met_->names, [&](const auto& entry) { return !channels_.contains(entry.first); });
}

Result<std::unique_ptr<TaskStream>> NodeLinks::OpenTask(const std::string& node, const std::string& address,
                                                        TaskStream::Events events) {
  VRUN_ASSIGN(rpc::Channel * channel, ChannelTo(node, address));
  return TaskStream::Open(loop_, channel, "/vrun.v1.Node/Task", std::move(events));
}

Result<std::unique_ptr<CacheStream>> NodeLinks::OpenCache(const std::string& node, const std::string& address,
                                                          CacheStream::Events events) {
  VRUN_ASSIGN(rpc::Channel * channel, ChannelTo(node, address));
  return CacheStream::Open(loop_, channel, "/vrun.v1.Node/Cache", std::move(events));
}

Result<std::unique_ptr<KeptStream>> NodeLinks::OpenKept(const std::string& node, const std::string& address,
                                                        KeptStream::Events events) {
  VRUN_ASSIGN(rpc::Channel * channel, ChannelTo(node, address));
  return KeptStream::Open(loop_, channel, "/vrun.v1.Node/Kept", std::move(events));
}

Result<std::unique_ptr<SnapshotStream>> NodeLinks::OpenSnapshots(const std::string& address,
                                                                 SnapshotStream::Events events) {
  VRUN_ASSIGN(rpc::Channel * channel, ChannelTo("", address));
  return SnapshotStream::Open(loop_, channel, "/vrun.v1.Snapshots/Ask", std::move(events));
}

std::unique_ptr<NodeLinks::ContentUse> NodeLinks::UseContent(const std::vector<std::string>& addresses,
                                                             ContentJob job) {
  if (addresses.empty()) return nullptr;
  std::string key = job.placement.node() + "\n";
  for (const std::string& address : addresses) key += address + "\n";
  auto& link = content_links_[key];
  if (!link) link = std::make_unique<ContentLink>(this, addresses);
  auto use = std::make_unique<Use>(this, key);
  link->Add(use.get(), std::move(job), /*expected=*/false);
  return use;
}

std::unique_ptr<NodeLinks::ContentUse> NodeLinks::ExpectContent(ContentJob job) {
  for (const auto& [key, link] : content_links_) {
    if (!link->connected() || link->node() != job.placement.node()) continue;
    auto use = std::make_unique<Use>(this, key);
    link->Add(use.get(), std::move(job), /*expected=*/true);
    return use;
  }
  return nullptr;
}

}  // namespace vrun::home
