// SPDX-License-Identifier: Apache-2.0
#include "snapshots/snapshot_service.h"

#include <atomic>
#include <future>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/io/work_queue.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"
#include "proto/snapshots.pb.h"
#include "snapshots/collection.h"
#include "snapshots/difference.h"
#include "snapshots/oci_layout.h"

namespace vrun::snapshots {
namespace {

constexpr int kDifferencesAtATime = 1000;
constexpr int64_t kPresignMicros = 10'000'000;
constexpr int64_t kHousekeepMicros = 10'000'000;

}  // namespace

struct Service::Owner {
  std::unique_ptr<Collection> collection;
  std::shared_future<void> loaded;
  // Changes run one after the other; readers do not wait for them.
  WorkQueue changes{"snapshots"};
  WorkQueue reads{"snapshot-reads", 4};
  std::atomic<bool> housekeeping = false;
};

// One request and its answers.
class Service::Conversation : public rpc::Stream::Handler, public std::enable_shared_from_this<Conversation> {
 public:
  Conversation(Service* service, OwnerPtr owner, std::unique_ptr<rpc::Stream> stream)
      : service_(service), owner_(std::move(owner)), stream_(std::move(stream)) {}

  void OnMessage(std::string bytes) override {
    auto self = shared_from_this();
    if (std::exchange(asked_, true)) return;
    auto request = std::make_shared<v1::SnapshotRequest>();
    if (!request->ParseFromString(bytes)) return Fail(Error(Code::kInvalid, "snapshots: the request does not parse"));
    if (request->has_create()) {
      // Answered at once, not in turn: home has one stream for all its creations, and any one's token proves it.
      return owner_->reads.Post([self, request] {
        self->owner_->loaded.wait();
        const v1::CreateSnapshot& create = request->create();
        self->collection().RealmOf(create.home_id())->source().AllowToken(create.home_id(), create.token(), 0, 0);
        if (IsUnnamed(create.name())) {
          // A job waits for its name, perhaps while another snapshot is being made.
          auto announced = self->collection().Announce(create);
          if (!announced) return self->Fail(announced.error());
          self->Tell(*std::move(announced));
        }
        self->Work(request);
      });
    }
    Work(request);
  }
  void Work(const std::shared_ptr<v1::SnapshotRequest>& request) {
    auto self = shared_from_this();
    const bool change = request->has_create() || request->has_delete_();
    (change ? owner_->changes : owner_->reads).Post([self, request] {
      self->owner_->loaded.wait();
      const Status done = self->Answer(*request);
      if (!done) return self->Fail(done.error());
      if (request->has_serve()) return;  // until home has enough
      v1::SnapshotEvent event;
      event.mutable_done();
      self->Send(event);
      self->stream_->Finish();
    });
  }
  void OnWritable() override {
    MutexLock lock(mu_);
    writable_cv_.notify_all();
  }
  void OnClosed(Error) override {
    auto self = shared_from_this();
    {
      MutexLock lock(mu_);
      closed_ = true;
      writable_cv_.notify_all();
    }
    service_->loop_->Post([self] {
      self->use_.reset();
      self->served_.reset();
      self->service_->Drop(self);
    });
  }

 private:
  Collection& collection() { return *owner_->collection; }

  void Send(const v1::SnapshotEvent& event) { stream_->Send(event.SerializeAsString()); }
  void Fail(const Error& error) {
    v1::SnapshotEvent event;
    event.mutable_error()->set_code(static_cast<int>(error.code()));
    event.mutable_error()->set_message(error.message());
    Send(event);
    stream_->Finish();
  }
  // Waits until the peer has taken most of what was sent.
  Status SendSlowly(const v1::SnapshotEvent& event) {
    Send(event);
    MutexLock lock(mu_);
    writable_cv_.wait(
        lock, [&]() VRUN_REQUIRES(mu_) { return closed_ || stream_->queued_bytes() < rpc::Stream::kHighWater; });
    if (closed_) return Error(Code::kAborted, "home has gone");
    return {};
  }

  Status Answer(const v1::SnapshotRequest& request) {
    switch (request.what_case()) {
      case v1::SnapshotRequest::kCreate: return Create(request.create());
      case v1::SnapshotRequest::kList: {
        std::vector<v1::SnapshotInfo> all = collection().List();
        if (all.empty()) VRUN_TRY(collection().Readable());
        std::erase_if(all, [](const v1::SnapshotInfo& info) { return IsUnnamed(info.reference().name()); });
        for (v1::SnapshotInfo& info : all) Tell(std::move(info));
        return {};
      }
      case v1::SnapshotRequest::kShow: {
        VRUN_ASSIGN(const auto snapshot, collection().Find(request.show().name()));
        Tell(snapshot->info);
        return {};
      }
      case v1::SnapshotRequest::kDiff: return Diff(request.diff());
      case v1::SnapshotRequest::kDelete: {
        const auto& names = request.delete_().name();
        VRUN_ASSIGN(const uint64_t freed, collection().Delete({names.begin(), names.end()}));
        v1::SnapshotEvent event;
        event.mutable_freed()->set_bytes(freed);
        Send(event);
        return {};
      }
      case v1::SnapshotRequest::kExportOci: {
        VRUN_ASSIGN(const auto snapshot, collection().Find(request.export_oci().name()));
        return ExportLayout(*snapshot, snapshot->realm->files(), [this](v1::ExportPart part) {
          v1::SnapshotEvent event;
          *event.mutable_part() = std::move(part);
          return SendSlowly(event);
        });
      }
      case v1::SnapshotRequest::kServe: return Serve(request.serve());
      case v1::SnapshotRequest::WHAT_NOT_SET: break;
    }
    return Error(Code::kUnsupported, "the snapshot store does not know this request: update vrun there");
  }

  void Tell(v1::SnapshotInfo info) {
    v1::SnapshotEvent event;
    info.clear_root();
    *event.mutable_snapshot() = std::move(info);
    Send(event);
  }

  Status Create(const v1::CreateSnapshot& request) {
    VRUN_ASSIGN(Collection::Created created, collection().Create(request, [this](const v1::SnapshotProgress& p) {
      v1::SnapshotEvent event;
      *event.mutable_progress() = p;
      Send(event);
      MutexLock lock(mu_);
      return !closed_;
    }));
    if (!created.changed.empty()) {
      v1::SnapshotEvent event;
      for (std::string& path : created.changed) event.mutable_changed()->add_path(std::move(path));
      Send(event);
      if (!IsUnnamed(request.name())) return {};
    }
    Tell(std::move(created.info));
    return {};
  }

  Status Diff(const v1::DiffSnapshots& diff) {
    VRUN_ASSIGN(const auto from, collection().Find(diff.from()));
    VRUN_ASSIGN(const auto to, collection().Find(diff.to()));
    v1::SnapshotEvent event;
    Status sent;
    const auto flush = [&] {
      if (sent) sent = SendSlowly(event);
      event.Clear();
    };
    Compare(*from, *to, [&](v1::SnapshotDifference difference) {
      *event.mutable_differences()->add_difference() = std::move(difference);
      if (event.differences().difference_size() >= kDifferencesAtATime) flush();
    });
    if (event.has_differences()) flush();
    return sent;
  }

  Status Serve(const v1::ServeSnapshot& serve) {
    VRUN_ASSIGN(auto snapshot, collection().Find(serve.snapshot()));
    auto self = shared_from_this();
    if (serve.has_trace()) ExpectTrace(serve, *snapshot);
    service_->loop_->Post([self, snapshot = std::move(snapshot), serve]() mutable {
      {
        MutexLock lock(self->mu_);
        if (self->closed_) return;
      }
      v1::Placement placement;
      placement.set_job(serve.job());
      placement.set_attempt(serve.attempt());
      placement.set_token(serve.token());
      self->served_ = std::move(snapshot);
      self->use_ = self->served_->realm->nodes().UseContent({serve.address().begin(), serve.address().end()},
                                                            {.placement = placement});
      v1::SnapshotEvent event;
      event.mutable_serving();
      self->Send(event);
    });
    return {};
  }

  // Home keeps the traces of such runs.
  void ExpectTrace(const v1::ServeSnapshot& serve, const Collection::Snapshot& snapshot) {
    auto kept = std::make_shared<home::Traces::Elsewhere>();
    if (auto earlier = home::ReadTrace(serve.trace())) kept->earlier = *std::move(earlier);
    kept->put = [weak = weak_from_this()](const v1::ContentRequest::PutTrace& put) {
      const auto self = weak.lock();
      if (!self) return;
      v1::SnapshotEvent event;
      *event.mutable_traced() = put;
      self->Send(event);
      self->service_->loop_->Post([self] {});  // it may hold the last reference
    };
    snapshot.realm->traces().Expect({serve.job(),
                                     serve.attempt(),
                                     serve.token(),
                                     snapshot.tree->id,
                                     {},
                                     std::weak_ptr<const home::Traces::Elsewhere>(kept)});
    kept_trace_ = std::move(kept);
  }

  Service* const service_;
  const OwnerPtr owner_;
  std::unique_ptr<rpc::Stream> stream_;
  bool asked_ = false;  // used by the stream's thread
  std::shared_ptr<const home::Traces::Elsewhere> kept_trace_;
  Mutex mu_;
  CondVar writable_cv_;
  bool closed_ VRUN_GUARDED_BY(mu_) = false;
  // Used by the loop:
  Collection::SnapshotPtr served_;
  std::unique_ptr<home::NodeLinks::ContentUse> use_;
};

// A home that connects to serve content; its first message says which of its owner's homes it is.
class Service::ContentDoor : public rpc::Stream::Handler, public std::enable_shared_from_this<ContentDoor> {
 public:
  ContentDoor(Service* service, OwnerPtr owner, std::unique_ptr<rpc::Stream> stream)
      : service_(service), owner_(std::move(owner)), stream_(std::move(stream)) {}

  void OnMessage(std::string bytes) override {
    if (inner_ != nullptr) return inner_->OnMessage(std::move(bytes));
    v1::ContentReply first;
    if (!stream_ || !first.ParseFromString(bytes) || !first.has_hello()) return;
    auto inner = owner_->collection->RealmOf(first.hello().home_id())->source().Accept(std::move(stream_));
    if (!inner) return LogWarning("content of a home: {}", inner.error().message());
    inner_ = *inner;
    inner_->OnMessage(std::move(bytes));
  }
  void OnWritable() override {
    if (inner_ != nullptr) inner_->OnWritable();
  }
  void OnClosed(Error reason) override {
    auto self = shared_from_this();
    if (inner_ != nullptr) inner_->OnClosed(std::move(reason));
    service_->loop_->Post([self] { self->service_->Drop(self); });
  }

 private:
  Service* const service_;
  const OwnerPtr owner_;
  // Used by the stream's thread.
  std::unique_ptr<rpc::Stream> stream_;  // until it has identified its home
  rpc::Stream::Handler* inner_ = nullptr;
};

Service::Service(EventLoop* loop, std::string directory, std::string store_id, rpc::Credentials mine,
                 VaultSettings vault)
    : loop_(loop),
      directory_(std::move(directory)),
      store_id_(std::move(store_id)),
      mine_(std::move(mine)),
      vault_(std::move(vault)) {}

Service::~Service() {
  server_.reset();  // no callback runs after this
  stand_in_.reset();
  for (auto& [name, owner] : owners_) {
    owner->changes.Stop();
    owner->reads.Stop();
  }
  handlers_.clear();
}

Result<int> Service::Start(const std::string& listen) {
  if (!vault_.bucket.empty()) {
    VRUN_ASSIGN(controller_, rpc::Channel::Dial(vault_.controller, mine_, "controller"));
  }
  server_ = rpc::Server::Create(mine_);
  const auto serve = [this](const std::string& method, auto make) {
    server_->Streaming(
        method,
        [this, make](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
          if (peer.role != "home") return Error(Code::kDenied, "snapshots are for homes only");
          VRUN_ASSIGN(OwnerPtr owner, OwnerOf(peer.name));
          auto handler = make(std::move(owner), std::move(stream));
          Keep(handler);
          return handler.get();
        });
  };
  serve("/vrun.v1.Snapshots/Ask", [this](OwnerPtr owner, std::unique_ptr<rpc::Stream> stream) {
    return std::make_shared<Conversation>(this, std::move(owner), std::move(stream));
  });
  serve("/vrun.v1.Content/Serve", [this](OwnerPtr owner, std::unique_ptr<rpc::Stream> stream) {
    return std::make_shared<ContentDoor>(this, std::move(owner), std::move(stream));
  });
  auto port = server_->Start(listen);
  if (port && controller_) {
    stand_in_ =
        std::make_unique<StandIn>(loop_, controller_.get(),
                                  [this](const std::string& owner, const v1::SnapshotReference& reference,
                                         StandIn::Found found) { FindRoot(owner, reference, std::move(found)); });
  }
  if (port) Tick();
  return port;
}

void Service::FindRoot(const std::string& owner_name, const v1::SnapshotReference& reference, StandIn::Found found) {
  auto owner = OwnerOf(owner_name);
  if (!owner) return found(owner.error());
  (*owner)->reads.Post([loop = loop_, owner = *owner, reference, found = std::move(found)] {
    owner->loaded.wait();
    auto snapshot = owner->collection->Find(reference);
    loop->Post([snapshot = std::move(snapshot), found] {
      if (!snapshot) return found(snapshot.error());
      found(StandIn::Root{*snapshot, &(*snapshot)->realm->nodes(), (*snapshot)->realm->home_id(),
                          (*snapshot)->info.reference()});
    });
  });
}

Result<Service::OwnerPtr> Service::OwnerOf(const std::string& name) {
  MutexLock lock(mu_);
  if (const auto it = owners_.find(name); it != owners_.end()) return it->second;
  auto owner = std::make_shared<Owner>();
  // Not its plain name, which may be unsuitable as a file name.
  const std::string directory = directory_ + "/owners/" + Sha256(name).Hex().substr(0, 32);
  std::optional<VaultPlace> vault;
  if (controller_) {
    vault = VaultPlace{vault_.bucket, name, [this](const v1::VaultPresign& request) { return Presign(request); },
                       vault_.disk_bytes};
  }
  VRUN_ASSIGN(owner->collection, Collection::Open(loop_, directory, store_id_, mine_, std::move(vault)));
  auto loaded = std::make_shared<std::promise<void>>();
  owner->loaded = loaded->get_future().share();
  owner->changes.Post([raw = owner.get(), loaded, name] {
    const int64_t began = MonotonicMicros();
    const Status read = raw->collection->Load();
    if (!read) LogError("snapshots of {}: {}", Escape(name), read.error().message());
    LogInfo("snapshots of {}: {} read in {} ms", Escape(name), raw->collection->List().size(),
            (MonotonicMicros() - began) / 1000);
    loaded->set_value();
  });
  owners_[name] = owner;
  return owner;
}

void Service::Keep(std::shared_ptr<rpc::Stream::Handler> handler) {
  MutexLock lock(mu_);
  handlers_.insert(std::move(handler));
}

void Service::Drop(const std::shared_ptr<rpc::Stream::Handler>& handler) {
  MutexLock lock(mu_);
  handlers_.erase(handler);
}

Result<v1::PresignReply> Service::Presign(const v1::VaultPresign& request) {
  auto answer = std::make_shared<std::promise<Result<std::string>>>();
  controller_->Call("/vrun.v1.Control/PresignVault", request.SerializeAsString(), kPresignMicros,
                    [answer](Result<std::string> reply) { answer->set_value(std::move(reply)); });
  VRUN_ASSIGN(const std::string bytes, answer->get_future().get());
  v1::PresignReply reply;
  if (!reply.ParseFromString(bytes)) return Error(Code::kCorrupt, "the controller's answer does not parse");
  return reply;
}

void Service::Tick() {
  std::vector<OwnerPtr> owners;
  {
    MutexLock lock(mu_);
    for (const auto& [name, owner] : owners_) owners.push_back(owner);
  }
  const int64_t now = MonotonicMicros();
  for (const OwnerPtr& owner : owners) owner->collection->Tick(now);
  if (stand_in_) stand_in_->Look();
  if (controller_ && now - housekept_ > kHousekeepMicros) {
    housekept_ = now;
    for (const OwnerPtr& owner : owners) {
      if (owner->housekeeping.exchange(true)) continue;
      owner->changes.Post([owner] {
        owner->collection->Housekeep();
        owner->housekeeping = false;
      });
    }
  }
  loop_->After(1'000'000, [this] { Tick(); });
}

}  // namespace vrun::snapshots
