// SPDX-License-Identifier: Apache-2.0
#include "home/runs/snapshot_client.h"

#include <sys/utsname.h>

#include <algorithm>
#include <optional>

#include "base/escape.h"
#include "base/hash/secret.h"
#include "base/log.h"
#include "home/serve/content_server.h"
#include "tree/subset.h"

namespace vrun::home {
namespace {

constexpr int kTries = 5;  // to capture files that change while they are read
constexpr int kNamed = 3;
constexpr size_t kLastTrees = 4;
constexpr int64_t kFirstRetryMicros = 100'000;
constexpr int64_t kLastRetryMicros = 5'000'000;
constexpr size_t kTokenBytes = 16;
constexpr int64_t kTraceMicros = 2'000'000;  // wait for the node's report after the end of a job

Error FromWire(const v1::Error& error) { return Error(static_cast<Code>(error.code()), error.message()); }

// The name used by container tools.
std::string Architecture() {
  utsname names;
  if (::uname(&names) != 0) return "amd64";
  const std::string machine = names.machine;
  if (machine == "x86_64") return "amd64";
  if (machine == "aarch64") return "arm64";
  return machine;
}

std::string Named(const google::protobuf::RepeatedPtrField<std::string>& paths) {
  std::string text;
  for (int i = 0; i < std::min(paths.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + Escape(paths[i]);
  return paths.size() > kNamed ? text + " and " + std::to_string(paths.size() - kNamed) + " more" : text;
}

}  // namespace

SnapshotClient::SnapshotClient(EventLoop* loop, ContentServer* content, RootTree* tree, TreeTable* trees,
                               const std::string& home_id)
    : loop_(loop),
      traces_(&content->traces()),
      tree_(tree),
      trees_(trees),
      home_id_(home_id),
      links_(loop, content, home_id, "snapshots") {}

SnapshotClient::~SnapshotClient() {
  *alive_ = false;
  keeping_.Stop();
}

void SnapshotClient::Use(const std::string& address, const rpc::Credentials& credentials) {
  address_ = address;
  links_.UseCredentials(credentials);
}

Result<std::unique_ptr<SnapshotClient::Stream>> SnapshotClient::Ask(const v1::SnapshotRequest& request,
                                                                    Stream::Events events) {
  if (address_.empty()) {
    return Error(Code::kNotFound,
                 "snapshots: this cluster has no snapshot store: `vctl up` starts one, or write `snapshots = "
                 "\"HOST:PORT\"` into the configuration");
  }
  VRUN_ASSIGN(auto stream, links_.OpenSnapshots(address_, std::move(events)));
  stream->Send(request);
  return stream;
}

// One request of the command line, whose answers are forwarded as they come. Owned by the callbacks of its connection.
class SnapshotClient::Question : public std::enable_shared_from_this<Question> {
 public:
  Question(SnapshotClient* snapshots, v1::SnapshotRequest request)
      : snapshots_(snapshots), alive_(snapshots->alive_), request_(std::move(request)) {}
  virtual ~Question() = default;

  virtual void Start(const std::shared_ptr<ClientConnection>& client) {
    Bind(client);
    Open();
  }

 protected:
  void Bind(const std::shared_ptr<ClientConnection>& client) {
    client_ = client;
    // The connection owns us, we hold it weakly.
    client->SetEvents({.on_message = [self = shared_from_this()](v1::ClientMessage, std::vector<UniqueFd>) {},
                       .on_closed = [self = shared_from_this()] { self->stream_.reset(); }});
  }
  void Open() {
    auto stream = snapshots_->Ask(request_, {.on_message = [this](v1::SnapshotEvent event) { Heard(std::move(event)); },
                                             .on_closed = [this](const Error& reason) { Closed(reason); }});
    if (!stream) return Fail(stream.error());
    stream_ = std::move(*stream);
  }
  virtual void Heard(v1::SnapshotEvent event) {
    auto client = client_.lock();
    if (!client) return;
    if (event.has_error()) return Fail(FromWire(event.error()));
    v1::HomeMessage message;
    if (event.has_done()) {
      over_ = true;
      message.mutable_done();
      client->Send(message);
      return client->Close();
    }
    *message.mutable_snapshot() = std::move(event);
    client->Send(message);
  }
  void Closed(const Error& reason) {
    if (over_) return;
    const bool said = reason.code() != Code::kOk;
    Fail(said ? reason : Error(Code::kUnavailable, "the snapshot store ended the connection: try again"));
  }
  void Fail(const Error& error) {
    over_ = true;
    if (auto client = client_.lock()) client->SendError(error);
  }
  // Call before a stream's callback replaces that stream.
  template <typename F>
  void Later(F f) {
    snapshots_->loop_->Post([weak = weak_from_this(), alive = alive_, f] {
      auto self = weak.lock();
      if (self && *alive) f();
    });
  }

  SnapshotClient* const snapshots_;
  const std::shared_ptr<bool> alive_;
  v1::SnapshotRequest request_;
  std::weak_ptr<ClientConnection> client_;
  std::unique_ptr<Stream> stream_;
  bool over_ = false;
};

// Creates a snapshot of the current root; retries with the newer root if files changed while they were read.
class SnapshotClient::Creation : public Question {
 public:
  using Question::Question;

  void Start(const std::shared_ptr<ClientConnection>& client) override {
    Bind(client);
    auto token = RandomSecret(kTokenBytes);
    if (!token) return Fail(token.error());
    v1::CreateSnapshot* create = request_.mutable_create();
    create->set_home_id(snapshots_->home_id_);
    create->set_token(*token);
    create->set_architecture(Architecture());
    Take();
  }

 private:
  void Take() {
    snapshots_->tree_->Current({}, [this, weak = weak_from_this(), alive = alive_](Result<tree::TreePtr> tree) {
      auto self = weak.lock();
      if (!self || !*alive) return;
      if (!tree) return Fail(tree.error());
      const auto& paths = request_.create().path();
      auto part = tree::Subset(*tree, {paths.begin(), paths.end()});
      if (!part) return Fail(part.error());
      Send(*part);
    });
  }
  void Send(const tree::TreePtr& tree) {
    // The store requests this tree, and the next time the differences from it.
    pin_ = snapshots_->trees_->Add(tree, {});
    request_.mutable_create()->set_tree(std::string(tree->id.view()));
    v1::Placement placement;
    placement.set_token(request_.create().token());
    if (!use_ && !snapshots_->address_.empty()) {
      use_ = snapshots_->links_.UseContent({snapshots_->address_}, {.placement = placement});
    }
    Open();
  }
  void Heard(v1::SnapshotEvent event) override {
    if (over_) return;  // messages after "changed"
    if (event.has_snapshot()) snapshots_->last_.push_back(std::move(pin_));
    if (snapshots_->last_.size() > kLastTrees) snapshots_->last_.pop_front();
    if (!event.has_changed()) return Question::Heard(std::move(event));
    over_ = true;  // for this stream
    if (++tries_ >= kTries) {
      return Fail(Error(Code::kAborted, "snapshot " + Escape(request_.create().name()) + ": " +
                                            Named(event.changed().path()) +
                                            ": changes all the time: stop what writes " +
                                            "there, or name the directories that you want"));
    }
    Later([this] {
      stream_.reset();
      over_ = false;
      Take();
    });
  }

  TreeTable::Pin pin_;
  std::unique_ptr<NodeLinks::ContentUse> use_;
  int tries_ = 0;
};

void SnapshotClient::Answer(const std::shared_ptr<ClientConnection>& client, const v1::SnapshotRequest& request) {
  if (request.has_serve()) return client->SendError(Error(Code::kInvalid, "snapshots: not a request for home"));
  if (request.has_create()) return std::make_shared<Creation>(this, request)->Start(client);
  std::make_shared<Question>(this, request)->Start(client);
}

void SnapshotClient::AskOnce(const v1::SnapshotRequest& request,
                             std::function<void(Result<v1::SnapshotEvent>)> answer) {
  struct Search {
    std::unique_ptr<Stream> stream;
    std::function<void(Result<v1::SnapshotEvent>)> done;
  };
  auto search = std::make_shared<Search>();
  search->done = std::move(answer);
  const auto tell = [loop = loop_, alive = alive_, search](Result<v1::SnapshotEvent> event) {
    if (!search->done) return;
    // Posted, because the stream is on the stack and owns us.
    loop->Post([alive, search, event = std::move(event), call = std::exchange(search->done, nullptr)] {
      search->stream.reset();
      if (*alive) call(event);
    });
  };
  auto stream = Ask(request, {.on_message =
                                  [tell](const v1::SnapshotEvent& event) {
                                    if (event.has_error()) return tell(FromWire(event.error()));
                                    if (event.has_snapshot() || event.has_freed()) tell(event);
                                  },
                              .on_closed =
                                  [tell](const Error& reason) {
                                    tell(reason.code() != Code::kOk
                                             ? reason
                                             : Error(Code::kUnavailable, "the snapshot store ended the connection"));
                                  }});
  if (!stream) return tell(stream.error());
  search->stream = std::move(*stream);
}

void SnapshotClient::Find(const std::string& name, std::function<void(Result<v1::SnapshotReference>)> done) {
  v1::SnapshotRequest request;
  request.mutable_show()->set_name(name);
  AskOnce(request, [done = std::move(done)](Result<v1::SnapshotEvent> event) {
    if (!event) return done(event.error());
    done(event->snapshot().reference());
  });
}

void SnapshotClient::Delete(const std::string& name, std::function<void(Status)> done) {
  v1::SnapshotRequest request;
  request.mutable_delete_()->add_name(name);
  AskOnce(request, [done = std::move(done)](Result<v1::SnapshotEvent> event) {
    if (event || event.error().code() == Code::kNotFound) return done({});
    done(event.error());
  });
}

class SnapshotClient::UnnamedSending : public Sending {
 public:
  UnnamedSending(SnapshotClient* snapshots, std::string name, const tree::TreePtr& tree,
                 const std::vector<std::string>& exposed, const std::vector<std::string>& first, Events events)
      : snapshots_(snapshots),
        client_alive_(snapshots->alive_),
        name_(std::move(name)),
        pin_(snapshots->trees_->Add(tree, exposed)),
        events_(std::move(events)) {
    v1::CreateSnapshot* create = request_.mutable_create();
    create->set_name(name_);
    create->set_home_id(snapshots->home_id_);
    create->set_tree(std::string(tree->id.view()));
    create->set_architecture(Architecture());
    for (const std::string& path : first) create->add_path(path);
    Again(0);
  }
  ~UnnamedSending() override {
    *alive_ = false;
    if (*client_alive_) snapshots_->loop_->Cancel(again_);
  }
  void SetEvents(Events events) override { events_ = std::move(events); }
  const State& state() const override { return state_; }
  const std::string& name() const override { return name_; }

 private:
  void Open() {
    stream_.reset();
    auto token = RandomSecret(kTokenBytes);
    if (!token) return Problem(token.error());
    request_.mutable_create()->set_token(*token);
    v1::Placement placement;
    placement.set_token(*token);
    // First the new one: a working connection stays.
    auto use = snapshots_->address_.empty()
                   ? nullptr
                   : snapshots_->links_.UseContent({snapshots_->address_}, {.placement = placement});
    use_ = std::move(use);
    auto stream = snapshots_->Ask(request_, {.on_message = [this](const v1::SnapshotEvent& event) { Heard(event); },
                                             .on_closed = [this](const Error& reason) { Closed(reason); }});
    if (!stream) return Problem(stream.error());
    stream_ = std::move(*stream);
  }
  void Heard(const v1::SnapshotEvent& event) {
    if (event.has_error()) return Problem(FromWire(event.error()));
    if (event.has_changed()) state_.lost.assign(event.changed().path().begin(), event.changed().path().end());
    if (event.has_progress()) {
      v1::SnapshotProgress& progress = state_.progress;
      // The second half tells of itself only.
      if (event.progress().total_saved_bytes() > 0) {
        progress.set_saved_bytes(event.progress().saved_bytes());
        progress.set_total_saved_bytes(event.progress().total_saved_bytes());
        progress.set_files(progress.total_files());
        progress.set_bytes(progress.total_bytes());
      } else {
        progress = event.progress();
      }
    }
    if (event.has_snapshot()) {
      if (!std::exchange(announced_, true))
        Tell([this, reference = event.snapshot().reference()] {
          if (const auto call = events_.on_announced) call(reference);
        });
      if (!event.snapshot().reference().id().empty()) state_.complete = true;
    }
    if (!event.has_done()) delay_ = kFirstAgainMicros;
    state_.problem.clear();
    Change();
  }
  void Closed(const Error& reason) {
    if (state_.complete || again_ != 0) return;
    Problem(reason.code() != Code::kOk ? reason : Error(Code::kUnavailable, "the snapshot store ended the connection"));
  }
  void Problem(const Error& error) {
    state_.problem = error.message();
    Again(delay_);
    delay_ = std::min(delay_ * 2, kLastAgainMicros);
    Change();
  }
  void Again(int64_t delay) {
    if (again_ != 0) return;
    again_ = snapshots_->loop_->After(delay, [this] {
      again_ = 0;
      Open();
    });
  }
  void Change() {
    if (state_.complete) {
      // Posted, because the stream is on the stack.
      Tell([this] {
        stream_.reset();
        use_.reset();
      });
    }
    Tell([this] {
      if (const auto call = events_.on_change) call();
    });
  }
  // The callback may destroy this.
  template <typename F>
  void Tell(F f) {
    snapshots_->loop_->Post([alive = alive_, f = std::move(f)] {
      if (*alive) f();
    });
  }

  static constexpr int64_t kFirstAgainMicros = 500'000, kLastAgainMicros = 10'000'000;
  SnapshotClient* const snapshots_;
  const std::shared_ptr<bool> client_alive_;
  const std::string name_;
  const TreeTable::Pin pin_;
  Events events_;
  v1::SnapshotRequest request_;
  State state_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<NodeLinks::ContentUse> use_;
  std::unique_ptr<Stream> stream_;
  bool announced_ = false;
  EventLoop::TimerId again_ = 0;
  int64_t delay_ = kFirstAgainMicros;
};

std::unique_ptr<SnapshotClient::Sending> SnapshotClient::Send(const std::string& name, const tree::TreePtr& tree,
                                                              const std::vector<std::string>& exposed,
                                                              const std::vector<std::string>& first,
                                                              Sending::Events events) {
  return std::make_unique<UnnamedSending>(this, name, tree, exposed, first, std::move(events));
}

// Reopened while it is held: the store may restart, or be unreachable for a while.
class SnapshotClient::Served {
 public:
  Served(SnapshotClient* snapshots, v1::SnapshotRequest request, std::function<void(const Error&)> on_problem)
      : snapshots_(snapshots), request_(std::move(request)), on_problem_(std::move(on_problem)) {
    Open();
  }
  ~Served() {
    *alive_ = false;
    snapshots_->loop_->Cancel(retry_);
  }
  bool connected() const { return stream_ != nullptr; }
  // The job has ended. True: a report may still come.
  bool Leave() {
    on_problem_ = nullptr;
    return stream_ != nullptr && request_.serve().has_trace() && !traced_;
  }

 private:
  void Open() {
    auto stream = snapshots_->Ask(request_, {.on_message =
                                                 [this](const v1::SnapshotEvent& event) {
                                                   if (event.has_serving()) delay_ = kFirstRetryMicros;
                                                   if (event.has_error()) Problem(FromWire(event.error()));
                                                   if (event.has_traced()) Traced(event.traced());
                                                 },
                                             .on_closed =
                                                 [this](const Error& reason) {
                                                   if (reason.code() != Code::kOk) Problem(reason);
                                                   Later();
                                                 }});
    if (!stream) {
      Problem(stream.error());
      return Later();
    }
    stream_ = std::move(*stream);
  }
  void Problem(const Error& error) {
    if (error.message() == told_) return;
    told_ = error.message();
    snapshots_->loop_->Post([alive = alive_, this, error] {
      if (*alive && on_problem_) on_problem_(error);
    });
  }
  void Traced(const v1::ContentRequest::PutTrace& put) {
    traced_ = true;
    snapshots_->keeping_.Post([traces = snapshots_->traces_, put] {
      if (const Status kept = traces->Put(put); !kept) LogInfo("a trace of a snapshot: {}", kept.error().message());
    });
    // Posted, because the stream is on the stack.
    snapshots_->loop_->Post([alive = alive_, this] {
      if (*alive && !on_problem_) snapshots_->Forget(this);
    });
  }
  void Later() {
    if (!on_problem_) return;
    retry_ = snapshots_->loop_->After(delay_, [this] {
      retry_ = 0;
      stream_.reset();
      Open();
    });
    delay_ = std::min(delay_ * 2, kLastRetryMicros);
  }

  SnapshotClient* const snapshots_;
  const v1::SnapshotRequest request_;
  std::function<void(const Error&)> on_problem_;  // null: the job has ended
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Stream> stream_;
  bool traced_ = false;
  EventLoop::TimerId retry_ = 0;
  int64_t delay_ = kFirstRetryMicros;
  std::string told_;
};

// Held by the job.
class SnapshotClient::ServedUse : public NodeLinks::ContentUse {
 public:
  ServedUse(SnapshotClient* snapshots, std::unique_ptr<Served> served)
      : snapshots_(snapshots), served_(std::move(served)) {}
  ~ServedUse() override {
    if (served_->Leave()) snapshots_->AwaitTrace(std::move(served_));
  }
  uint64_t sent_bytes() const override { return 0; }  // bytes sent by home
  bool connected() const override { return served_->connected(); }
  int64_t shown_micros() const override { return 0; }

 private:
  SnapshotClient* const snapshots_;
  std::unique_ptr<Served> served_;
};

void SnapshotClient::AwaitTrace(std::unique_ptr<Served> served) {
  loop_->After(kTraceMicros, [this, alive = alive_, raw = served.get()] {
    if (*alive) Forget(raw);
  });
  awaiting_.insert(std::move(served));
}

void SnapshotClient::Forget(const Served* served) {
  std::erase_if(awaiting_, [served](const auto& one) { return one.get() == served; });
}

std::unique_ptr<NodeLinks::ContentUse> SnapshotClient::Serve(const v1::SnapshotReference& snapshot,
                                                             const std::vector<std::string>& addresses,
                                                             const v1::Placement& placement,
                                                             const std::optional<TraceSubject>& trace,
                                                             std::function<void(const Error&)> on_problem) {
  v1::SnapshotRequest request;
  v1::ServeSnapshot* serve = request.mutable_serve();
  *serve->mutable_snapshot() = snapshot;
  for (const std::string& address : addresses) serve->add_address(address);
  serve->set_token(placement.token());
  serve->set_job(placement.job());
  serve->set_attempt(placement.attempt());
  if (trace) *serve->mutable_trace() = traces_->Earlier(*trace);
  return std::make_unique<ServedUse>(this, std::make_unique<Served>(this, std::move(request), std::move(on_problem)));
}

}  // namespace vrun::home
