// SPDX-License-Identifier: Apache-2.0
#include "control/service.h"

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "control/ops/audit.h"
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

// Minimum time between passes of the scheduler, even if it asks for less.
constexpr int64_t kShortestWakeMicros = 1'000;
// Moves of a queue are reported to its watchers together, after this time.
constexpr int64_t kTellQueuesMicros = 100'000;
// That a message was delivered could not be stored.
constexpr int64_t kDropAgainMicros = 1'000'000;

// A node needs one, and for a moment a second one when it connects again.
constexpr uint32_t kMostNodeStreams = 32;

// "" if there are none or several.
std::string OnlyPool(const State& state) {
  const std::vector<std::string> pools = state.Pools();
  return pools.size() == 1 ? pools[0] : "";
}

}  // namespace

// A node's stream. Created on a gRPC thread, then owned by the state thread.
class Service::AgentSession : public rpc::Stream::Handler, public std::enable_shared_from_this<AgentSession> {
 public:
  // `counted`: as of a WatchSession.
  AgentSession(Service* service, std::string node, std::unique_ptr<rpc::Stream> stream, std::shared_ptr<void> counted)
      : service_(service), node_(std::move(node)), stream_(std::move(stream)), counted_(std::move(counted)) {}

  void OnMessage(std::string message) override {
    if (auto self = weak_from_this().lock()) service_->OnAgentMessage(self, std::move(message));
  }
  void OnClosed(Error) override {
    if (auto self = weak_from_this().lock()) service_->OnAgentClosed(self);
  }
  const std::string& node() const { return node_; }
  std::pair<const char*, const std::string&> who() const { return {"node", node_}; }
  rpc::Stream& stream() { return *stream_; }

  bool knows_shut_out = false;  // state thread

 private:
  Service* const service_;
  const std::string node_;
  std::unique_ptr<rpc::Stream> stream_;
  const std::shared_ptr<void> counted_;
};

// A home's watch on one pod of a job.
class Service::WatchSession : public rpc::Stream::Handler, public std::enable_shared_from_this<WatchSession> {
 public:
  // `counted`: until it is destroyed, the stream counts among those of its user.
  WatchSession(Service* service, std::string viewer, std::unique_ptr<rpc::Stream> stream, std::shared_ptr<void> counted)
      : service_(service), viewer_(std::move(viewer)), stream_(std::move(stream)), counted_(std::move(counted)) {}

  void OnMessage(std::string message) override {
    if (auto self = weak_from_this().lock()) service_->OnWatchMessage(self, std::move(message));
  }
  void OnClosed(Error) override {
    auto self = weak_from_this().lock();
    if (!self) return;
    service_->loop_->Post([self] {
      Service* service = self->service_;
      if (auto it = service->watchers_.find(self->job_); it != service->watchers_.end()) {
        it->second.erase(self.get());
        if (it->second.empty()) service->watchers_.erase(it);
      }
      service->watch_sessions_.Erase(self);
    });
  }

  // State thread. Sends the job's present state unless it was the last one sent, and the elements of an array that are
  // jobs now. The end of the job ends the stream.
  void Tell(const std::vector<v1::ArrayElement>& elements = {}) {
    if (over_) return;
    Result<v1::JobEvent> event = service_->state_.EventOf(job_, viewer_, pod_);
    if (!event) return Refuse(event.error());
    event->mutable_started()->Add(elements.begin(), elements.end());
    std::string bytes = event->SerializeAsString();
    if (bytes == last_) return;
    stream_->Send(bytes);
    last_ = std::move(bytes);
    if (IsEnd(event->state())) {
      over_ = true;
      stream_->Finish();
    }
  }
  // State thread.
  Status MaySee() const {
    VRUN_ASSIGN(const JobRow job, service_->state_.Find(job_));
    return service_->state_.MayTouch("/vrun.v1.Control/Watch", viewer_, job);
  }
  void Refuse(const Error& error) {
    over_ = true;
    stream_->Cancel(error);
  }

  std::pair<const char*, const std::string&> who() const { return {"home", viewer_}; }
  rpc::Stream& stream() { return *stream_; }

  uint64_t job_ = 0;  // 0: no request yet
  uint32_t pod_ = 0;

 private:
  Service* const service_;
  const std::string viewer_;
  std::unique_ptr<rpc::Stream> stream_;
  const std::shared_ptr<void> counted_;
  std::string last_;
  bool over_ = false;
};

Service::Service(EventLoop* loop, Store* store, const Clock* clock, Settings settings)
    : loop_(loop),
      store_(store),
      state_(store, clock, settings),
      limiter_(settings.scheduler.bounds),
      node_streams_({.streams = kMostNodeStreams}),
      leases_(settings) {}

Service::~Service() {
  server_.reset();  // no callback runs after this
  sign_in_.reset();
  loop_->Cancel(wake_);
  loop_->Cancel(tell_queues_);
  inbox_.clear();
}

Result<int> Service::Start(const std::string& listen, const rpc::Credentials& credentials) {
  Recover();
  if (broken_) return Error(Code::kUnavailable, "the state cannot be read from the database: see the log");
  server_ = rpc::Server::Create(credentials);
  server_->Admit([this](const rpc::Peer& peer) { return Admit(peer); });
  ServeUnary("/vrun.v1.Control/Submit", &Submit);
  ServeUnary("/vrun.v1.Control/Cancel", &Cancel);
  ServeUnary("/vrun.v1.Control/Get", &Get);
  ServeUnary("/vrun.v1.Control/List", &List);
  ServeUnary("/vrun.v1.Control/Nodes", &Nodes);
  ServeUnary("/vrun.v1.Control/Why", &Why);
  ServeUnary("/vrun.v1.Control/Teams", &Teams);
  ServeUnary("/vrun.v1.Control/Accounts", &Accounts);
  ServeUnary("/vrun.v1.Control/Change", &Change);
  ServeUnary("/vrun.v1.Control/Drain", &Drain);
  ServeUnary("/vrun.v1.Control/Maintain", &Maintain);
  ServeUnary("/vrun.v1.Control/Usage", &Usage);
  ServeUnary("/vrun.v1.Control/Prices", &ListPrices);
  ServeUnary("/vrun.v1.Control/Budgets", &Budgets);
  ServeUnary("/vrun.v1.Control/PresignVault", &PresignVault);
  ServeUnary("/vrun.v1.People/WhoAmI", &WhoAmI);
  ServeStreams();
  if (members_ != nullptr) ServePeople();
  if (sign_in_) ServeSignIn();
  for (const std::string& call : server_->methods()) VRUN_CHECK(FindCallRule(call) != nullptr);
  Result<int> port = server_->Start(listen);
  if (port) SweepLeases();
  if (port) DropOld();
  return port;
}

Status Service::Admit(const rpc::Peer& peer) {
  if (Status admitted = members_ != nullptr ? members_->Admit(peer.role, peer.name) : Status(); !admitted) {
    AuditRefused(peer, "call", admitted.error());
    return admitted;
  }
  return peer.role == "home" ? limiter_.Call(Person(peer.name), MonotonicMicros()) : Status();
}

void Service::ServeStreams() {
  server_->Streaming(
      "/vrun.v1.Control/Agent",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        VRUN_TRY(MayCallHere("/vrun.v1.Control/Agent", peer));
        auto counted = node_streams_.OpenStream(peer.name);
        if (!counted) {
          return Error(Code::kExhausted, "node " + Escape(peer.name) + ": " + std::to_string(kMostNodeStreams) +
                                             " streams are open, which is the limit of each node");
        }
        auto session = std::make_shared<AgentSession>(this, peer.name, std::move(stream), *std::move(counted));
        agent_sessions_.Insert(session);
        return session.get();
      });
  server_->Streaming(
      "/vrun.v1.Control/Watch",
      [this](const rpc::Peer& peer, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
        VRUN_TRY(MayCallHere("/vrun.v1.Control/Watch", peer));
        VRUN_ASSIGN(std::shared_ptr<void> counted, limiter_.OpenStream(Person(peer.name)));
        auto session = std::make_shared<WatchSession>(this, peer.name, std::move(stream), std::move(counted));
        watch_sessions_.Insert(session);
        return session.get();
      });
}

void Service::ServePeople() {
  server_->Stranger("/vrun.v1.People/Join", [this](const rpc::Peer& peer, std::string bytes, auto reply) {
    v1::JoinRequest request;
    if (!request.ParseFromString(bytes)) return reply(Error(Code::kCorrupt, "join: not a request"));
    Result<v1::JoinReply> joined = Join(*members_, authority_, request, peer.address, WallMicros());
    if (!joined) {
      members_->AuditRefused(
          {"", request.role() + " " + request.name(), peer.address, "join", "", joined.error().message()});
      return reply(std::move(joined).error());
    }
    if (joined->role() != "home") return reply(joined->SerializeAsString());
    // The state is read on its own thread.
    loop_->Post([this, reply, answer = *std::move(joined)]() mutable {
      answer.set_pool(OnlyPool(state_));
      reply(answer.SerializeAsString());
    });
  });
  server_->Stranger("/vrun.v1.People/Renew", [this](const rpc::Peer& peer, std::string bytes, auto reply) {
    v1::RenewRequest request;
    if (!request.ParseFromString(bytes)) return reply(Error(Code::kCorrupt, "renew: not a request"));
    Result<v1::RenewReply> renewed = Renew(*members_, authority_, request, [this](const std::string& name) {
      return sign_in_ ? sign_in_->MayRenew(name, WallMicros()) : Status();
    });
    if (!renewed) {
      members_->AuditRefused({"", "somebody", peer.address, "renew", "", renewed.error().message()});
      return reply(std::move(renewed).error());
    }
    reply(renewed->SerializeAsString());
  });
  server_->Unary("/vrun.v1.People/ShutOutList", [this](const rpc::Peer& peer, std::string, auto reply) {
    if (Status may = MayCallHere("/vrun.v1.People/ShutOutList", peer); !may) return reply(std::move(may).error());
    Result<v1::ShutOut> list = members_->ShutOutList();
    if (!list) return reply(std::move(list).error());
    reply(list->SerializeAsString());
  });
}

void Service::ServeSignIn() {
  server_->Stranger("/vrun.v1.SignIn/Describe", [this](const rpc::Peer&, std::string, auto reply) {
    Result<v1::SignInReply> described = sign_in_->Describe();
    if (!described) return reply(std::move(described).error());
    reply(described->SerializeAsString());
  });
  server_->Stranger("/vrun.v1.SignIn/LogIn", [this](const rpc::Peer& peer, std::string bytes, auto reply) {
    v1::LogInRequest request;
    if (!request.ParseFromString(bytes)) return reply(Error(Code::kCorrupt, "login: not a request"));
    sign_in_->LogIn(authority_, request, peer.address, [reply](Result<v1::LogInReply> answer) {
      if (!answer) return reply(std::move(answer).error());
      reply(answer->SerializeAsString());
    });
  });
}

void Service::UsePersons(people::Persons* persons, const oidc::Settings& settings) {
  sign_in_ = std::make_unique<SignIn>(members_, persons);
  sign_in_->Use(settings);
}

void Service::UseMembers(const people::Members* members, Authority authority) {
  members_ = members;
  authority_ = std::move(authority);
}

template <typename Request, typename Reply>
void Service::ServeUnary(const std::string& method, Result<Reply> (*op)(State&, const rpc::Peer&, const Request&)) {
  unary_[method] = [this, op, method](const rpc::Peer& peer, std::string bytes, auto reply) {
    if (Status may = MayCallHere(method, peer); !may) return reply(std::move(may).error());
    auto request = std::make_shared<Request>();
    if (!request->ParseFromString(bytes)) return reply(Error(Code::kCorrupt, method + ": the request does not parse"));
    auto answer = std::make_shared<Result<Reply>>(Reply());
    Enqueue({.apply =
                 [this, op, method, peer, request, answer] {
                   Status may = peer.role == "home" ? MayCall(method, state_.RoleOf(peer.name)) : Status();
                   *answer = may ? op(state_, peer, *request) : Result<Reply>(std::move(may).error());
                 },
             .decided =
                 [this, answer] {
                   if constexpr (std::is_same_v<Reply, v1::SubmitReply>) {
                     if (*answer) AddPlacement(state_, &**answer);
                   }
                 },
             .done =
                 [this, method, peer, request, reply, answer](const Status& committed) {
                   if (!committed) return reply(committed.error());
                   if constexpr (requires { Audited(*request, *answer); }) {
                     Audit(peer, Audited(*request, *answer), *answer);
                   } else if (!*answer && answer->error().code() == Code::kDenied) {
                     AuditRefused(peer, method, answer->error());
                   }
                   if (!*answer) return reply(std::move(*answer).error());
                   reply((*answer)->SerializeAsString());
                 }});
  };
  server_->Unary(method, unary_[method]);
}

void Service::Call(const std::string& method, const rpc::Peer& peer, std::string request, Done done) {
  const auto found = unary_.find(method);
  if (found == unary_.end()) return done(Error(Code::kUnsupported, method + ": this controller has no such call"));
  found->second(peer, std::move(request), std::move(done));
}

void Service::Read(std::function<void(State*)> read) {
  Enqueue({.apply = nullptr, .decided = nullptr, .done = [this, read = std::move(read)](const Status& committed) {
             read(committed ? &state_ : nullptr);
           }});
}

template <typename Reply>
void Service::Audit(const rpc::Peer& peer, const AuditedAct& act, const Result<Reply>& answer) {
  if (members_ == nullptr || act.what.empty()) return;
  people::AuditEntry entry{"", peer.role + " " + peer.name, peer.address, act.what, act.of, act.result};
  if (!answer) entry.result = "refused: " + answer.error().message();
  if (entry.result.starts_with("refused")) return members_->AuditRefused(std::move(entry));
  if (entry.result.empty()) entry.result = "ok";
  members_->Audit(std::move(entry));
}

void Service::AuditRefused(const rpc::Peer& peer, const std::string& what, const Error& why) {
  if (members_ == nullptr) return;
  members_->AuditRefused({"", peer.role + " " + peer.name, peer.address, what, "", why.message()});
}

Status Service::MayCallHere(const std::string& method, const rpc::Peer& peer) {
  Status may = MayCall(method, peer.role);
  if (!may) AuditRefused(peer, method, may.error());
  return may;
}

void Service::Enqueue(Work work) {
  bool first = false;
  {
    MutexLock lock(mu_);
    first = inbox_.empty();
    inbox_.push_back(std::move(work));
  }
  if (first) loop_->Post([this] { RunBatch(); });
}

void Service::RunBatch() {
  std::vector<Work> batch;
  {
    MutexLock lock(mu_);
    batch.swap(inbox_);
  }
  if (broken_) Recover();
  Status committed = ApplyBatch(batch);
  if (!committed) {
    LogError("{}", committed.error().message());
    store_->Rollback();
    broken_ = true;
    Recover();
  }
  // Orders to nodes first, because users wait for them.
  if (committed) Flush();
  for (Work& work : batch) {
    if (work.done) work.done(committed);
  }
  ArmWake();
}

// Runs the scheduler again even if nothing happens: waiting increases a job's worth, and passes have a pause.
void Service::ArmWake() {
  loop_->Cancel(std::exchange(wake_, 0));
  const std::optional<int64_t> in = state_.NextWake();
  if (!in) return;
  wake_ = loop_->After(std::max(*in, kShortestWakeMicros), [this] {
    wake_ = 0;
    Enqueue({});
  });
}

void Service::Configure(SchedulerConfig config) {
  limiter_.Use(config.bounds);
  if (sign_in_) sign_in_->Use(config.oidc);
  if (sender_ != nullptr) sender_->Use(config.notify);
  Enqueue(
      {.apply = [this, config = std::move(config)] { state_.Configure(config); }, .decided = nullptr, .done = nullptr});
}

Status Service::ApplyBatch(std::vector<Work>& batch) {
  if (broken_) return Error(Code::kUnavailable, "the controller cannot read its database: see its log");
  VRUN_TRY(store_->Begin());
  for (Work& work : batch) {
    if (work.apply) work.apply();
  }
  const int64_t began = MonotonicMicros();
  VRUN_TRY(state_.Decide());
  counters_.NotePass(MonotonicMicros() - began);
  for (Work& work : batch) {
    if (work.decided) work.decided();
  }
  if (store_->failure()) return *store_->failure();
  return store_->Commit();
}

void Service::Recover() {
  Status loaded = [this]() -> Status {
    VRUN_TRY(store_->Begin());
    VRUN_TRY(state_.Load());
    return store_->Commit();
  }();
  broken_ = !loaded;
  if (!loaded) {
    LogError("read the state: {}", loaded.error().message());
    store_->Rollback();
    return;
  }
  counters_.Begin(state_);
  traces_.Begin(state_);
  Flush();
}

void Service::Flush() {
  Outbox outbox = std::exchange(state_.outbox(), {});
  for (auto& [node, message] : outbox.to_nodes) {
    auto it = agents_.find(node);
    if (it != agents_.end()) it->second->stream().Send(message.SerializeAsString());
  }
  if (sender_ != nullptr) sender_->Offer(std::move(outbox.messages));
  counters_.Note(state_, outbox.jobs);
  traces_.Note(state_, outbox.jobs);
  if (observer_ && !outbox.jobs.empty()) observer_(state_, outbox.jobs);
  TellWatchers(outbox);
}

void Service::TellWatchers(const Outbox& outbox) {
  if (watchers_.empty()) return;
  auto tell = [&](uint64_t job) {
    auto it = watchers_.find(job);
    if (it == watchers_.end()) return;
    const auto elements = outbox.elements.find(job);
    for (WatchSession* session : it->second) {
      elements != outbox.elements.end() ? session->Tell(elements->second) : session->Tell();
    }
  };
  for (uint64_t job : outbox.jobs) tell(job);
  for (const auto& [job, pod] : outbox.pods) {
    const auto it = watchers_.find(job);
    if (it == watchers_.end() || outbox.jobs.contains(job)) continue;
    for (WatchSession* session : it->second) {
      if (session->pod_ == pod) session->Tell();
    }
  }
  moved_pools_.insert(outbox.pools.begin(), outbox.pools.end());
  if (moved_pools_.empty() || tell_queues_ != 0) return;
  tell_queues_ = loop_->After(kTellQueuesMicros, [this] {
    tell_queues_ = 0;
    TellQueues();
  });
}

// A job that waits in a queue that has moved has a new position or another reason.
void Service::TellQueues() {
  const std::set<std::string> moved = std::exchange(moved_pools_, {});
  for (const auto& [id, sessions] : watchers_) {
    auto job = state_.jobs().find(id);
    if (job == state_.jobs().end() || job->second.state != v1::PENDING || !moved.contains(job->second.pool)) continue;
    for (WatchSession* session : sessions) session->Tell();
  }
}

void Service::OnAgentMessage(const std::shared_ptr<AgentSession>& session, std::string bytes) {
  auto message = std::make_shared<v1::AgentMessage>();
  if (!message->ParseFromString(bytes) || message->body_case() == v1::AgentMessage::BODY_NOT_SET) {
    session->stream().Cancel(Error(Code::kUnsupported, "agent: unknown message: update vrun on the controller"));
    return;
  }
  auto refused = std::make_shared<Status>();
  Enqueue({.apply =
               [this, session, message, refused] {
                 if (!agent_sessions_.Contains(session)) return;  // closed or replaced
                 const std::string& node = session->node();
                 if (message->has_register_()) {
                   const v1::Register& offer = message->register_();
                   session->knows_shut_out = offer.knows_shut_out();
                   if (members_ != nullptr) *refused = CheckBounds(*members_, node, offer.pool(), offer.total().gpus());
                   if (!*refused) {
                     members_->AuditRefused({"", "node " + node, "", "register", "", refused->error().message()});
                     return;
                   }
                   *refused = RegisterNode(state_, node, offer);
                   if (!*refused) return;
                   const Status kept = members_ != nullptr ? KeepName(*members_, node, WallMicros()) : Status();
                   if (!kept) LogWarning("node {}: {}", Escape(node), kept.error().message());
                   std::shared_ptr<AgentSession> before = std::exchange(agents_[node], session);
                   if (before && before != session) {
                     before->stream().Cancel(Error(Code::kAborted, "node " + node + " has connected again"));
                     agent_sessions_.Erase(before);
                   }
                   if (session->knows_shut_out && !shut_out_.empty()) session->stream().Send(shut_out_);
                   return;
                 }
                 auto it = agents_.find(node);
                 if (it == agents_.end() || it->second != session) {
                   *refused = Error(Code::kInvalid, "agent: the first message must be Register");
                   return;
                 }
                 *refused = Heard(state_, node);
                 if (*refused && message->has_report()) *refused = state_.Apply(node, message->report());
                 if (*refused && message->has_word()) *refused = state_.Saved(node, message->word());
                 if (*refused && message->has_exec()) state_.PassOn(node, message->exec());
                 if (*refused && message->has_gpus()) *refused = state_.Heed(node, message->gpus());
                 if (*refused && message->has_gpu_usages()) *refused = state_.Use(node, message->gpu_usages());
                 if (*refused && message->has_presign()) {
                   v1::ControllerMessage answer;
                   *answer.mutable_presigned() = Presign(state_, node, message->presign());
                   session->stream().Send(answer.SerializeAsString());
                 }
               },
           .decided = nullptr,
           .done =
               [this, session, refused](const Status& committed) {
                 if (committed) {
                   if (!*refused) session->stream().Cancel(refused->error());
                   return;
                 }
                 // The node repeats the reports of this batch after its next registration. A failed write is no reason
                 // to call the node silent.
                 (void)Heard(state_, session->node());
                 session->stream().Cancel(committed.error());
               }});
}

void Service::OnAgentClosed(const std::shared_ptr<AgentSession>& session) {
  Enqueue({.apply =
               [this, session] {
                 agent_sessions_.Erase(session);
                 auto it = agents_.find(session->node());
                 if (it == agents_.end() || it->second != session) return;
                 agents_.erase(it);
                 state_.Disconnected(session->node());
               },
           .decided = nullptr,
           .done = nullptr});
}

void Service::OnWatchMessage(const std::shared_ptr<WatchSession>& session, std::string bytes) {
  auto request = std::make_shared<v1::WatchRequest>();
  bool parses = request->ParseFromString(bytes);
  // Goes through the queue, so that a watch after a submit on the same connection sees the job.
  Enqueue({.apply = nullptr, .decided = nullptr, .done = [this, session, request, parses](const Status& committed) {
             if (!watch_sessions_.Contains(session)) return;
             if (!parses || session->job_ != 0) {
               return session->Refuse(Error(Code::kInvalid, "watch: one request, which names a job"));
             }
             if (!committed) return session->Refuse(committed.error());
             session->job_ = request->job();
             session->pod_ = request->pod();
             if (Status may = session->MaySee(); !may) return session->Refuse(may.error());
             watchers_[session->job_].insert(session.get());
             session->Tell(state_.ElementsOf(session->job_));
           }});
}

void Service::SweepLeases() {
  loop_->After(leases_.interval_micros(), [this] {
    Enqueue({.apply = [this] { (void)leases_.Run(state_); }, .decided = nullptr, .done = nullptr});
    EndRevoked();
    TellShutOut();
    SweepLeases();
  });
}

void Service::Delivered(uint64_t row, bool mail, bool sent) {
  Enqueue({.apply = [this, row] { (void)state_.Delivered(row); },
           .decided = nullptr,
           .done =
               [this, row, mail, sent](const Status& committed) {
                 if (committed) return counters_.NoteDelivery(mail, sent);
                 loop_->After(kDropAgainMicros, [this, row, mail, sent] { Delivered(row, mail, sent); });
               }});
}

void Service::DropOld() {
  loop_->After(retention_.pause_micros(), [this] {
    Enqueue({.apply = [this] { (void)retention_.Run(state_, members_); }, .decided = nullptr, .done = nullptr});
    DropOld();
  });
}

// Calls are refused at their beginning (Start); these have begun before.
void Service::EndRevoked() {
  if (members_ == nullptr) return;
  const auto end = [this](const auto& sessions) {
    for (const auto& session : sessions.All()) {
      const auto& [role, name] = session->who();
      if (Status admitted = members_->Admit(role, name); !admitted) session->stream().Cancel(admitted.error());
    }
  };
  end(agent_sessions_);
  end(watch_sessions_);
}

// Nodes refuse them themselves, whether the controller is there or not.
void Service::TellShutOut() {
  if (members_ == nullptr) return;
  const Result<v1::ShutOut> list = members_->ShutOutList();
  if (!list) return LogWarning("who was shut out: {}", list.error().message());
  v1::ControllerMessage message;
  *message.mutable_shut_out() = *list;
  std::string bytes = message.SerializeAsString();
  if (bytes == shut_out_) return;
  shut_out_ = std::move(bytes);
  CancelOfShutOut();
  for (const auto& [node, session] : agents_) {
    if (session->knows_shut_out) session->stream().Send(shut_out_);
  }
}

// They submit no more, so what is cancelled now is all that they have.
void Service::CancelOfShutOut() {
  Enqueue({.apply =
               [this] {
                 std::vector<uint64_t> theirs;
                 for (const auto& [id, job] : state_.jobs()) {
                   // An array ends with its elements.
                   if (job.array == 0 && !job.cancelled && !members_->Admit("home", job.user)) theirs.push_back(id);
                 }
                 for (const uint64_t id : theirs) {
                   if (const Status cancelled = state_.Cancel(id, 0); !cancelled) {
                     LogWarning("job {} of somebody who was shut out: {}", id, cancelled.error().message());
                     continue;
                   }
                   members_->Audit({"", "controller", "here", "cancel", "job " + std::to_string(id), "ok"});
                 }
               },
           .decided = nullptr,
           .done = nullptr});
}

}  // namespace vrun::control
