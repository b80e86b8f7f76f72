// SPDX-License-Identifier: Apache-2.0
// The controller's gRPC service: requests in, the state thread, replies out.
//
// gRPC's threads only parse and queue. The state thread takes everything queued, applies it in one transaction, and
// after the COMMIT sends answers, orders to nodes and events to watchers. If the transaction fails, all of its requests
// are answered with the store's error, the state is reloaded from the store, and the nodes whose reports were in the
// batch are disconnected. They reconnect and report everything again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/io/event_loop.h"
#include "base/thread/mutex.h"
#include "control/api/calls.h"
#include "control/api/counters.h"
#include "control/duties/node_timeouts.h"
#include "control/duties/retention.h"
#include "control/notify/sender.h"
#include "control/ops/join.h"
#include "control/ops/sign_in.h"
#include "control/state/state.h"
#include "control/store/store.h"
#include "control/traces/job_traces.h"
#include "people/members.h"
#include "rpc/rpc.h"

namespace vrun::control {

struct AuditedAct;

class Service : public Calls {
 public:
  // `loop` is the state thread; all three outlive the service.
  Service(EventLoop* loop, Store* store, const Clock* clock, Settings settings);
  // State thread, after its loop has stopped.
  ~Service() override;

  // Before Start. Who may call, and how others get a certificate. `members` outlives the service; `authority`:
  // its directory is "" if this controller makes no certificates.
  void UseMembers(const people::Members* members, Authority authority);
  // Before Start. How people get in by an identity provider. `persons` outlives the service.
  void UsePersons(people::Persons* persons, const oidc::Settings& settings);
  // Before Start. Who delivers messages; it calls Delivered. Outlives all calls but the destructor.
  void UseSender(notify::Sender* sender) { sender_ = sender; }
  // Any thread: the message needs no more tries.
  void Delivered(uint64_t row, bool mail, bool sent);
  // State thread. Reads the store and starts to serve. Returns the port.
  Result<int> Start(const std::string& listen, const rpc::Credentials& credentials);
  // State thread. Replaces all but the weights (scheduler_config.h) from the next batch on.
  void Configure(SchedulerConfig config);
  // All that is served, as "/vrun.v1.Control/Get". After Start.
  std::vector<std::string> calls() const { return server_->methods(); }

  // Calls (api/calls.h). After Start.
  Status Admit(const rpc::Peer& peer) override;
  void Call(const std::string& method, const rpc::Peer& peer, std::string request, Done done) override;
  void Read(std::function<void(State*)> read) override;
  void Observe(Observer observer) override { observer_ = std::move(observer); }
  const Counters& counters() const override { return counters_; }

 private:
  class AgentSession;
  class WatchSession;

  // One request of a batch. `apply` runs in the transaction; `decided` also runs in it, after the scheduler has decided
  // on the whole batch. `done` runs after the transaction, with the store's error if that failed.
  struct Work {
    std::function<void()> apply;
    std::function<void()> decided;
    std::function<void(const Status&)> done;
  };

  // The open streams. A stream is added before its first message is queued, because the state thread may take that
  // message at once. Any thread.
  template <typename Session>
  class Sessions {
   public:
    void Insert(std::shared_ptr<Session> session) {
      MutexLock lock(mutex_);
      open_.insert(std::move(session));
    }
    void Erase(const std::shared_ptr<Session>& session) {
      MutexLock lock(mutex_);
      open_.erase(session);
    }
    std::vector<std::shared_ptr<Session>> All() const {
      MutexLock lock(mutex_);
      return {open_.begin(), open_.end()};
    }
    bool Contains(const std::shared_ptr<Session>& session) const {
      MutexLock lock(mutex_);
      return open_.contains(session);
    }

   private:
    mutable Mutex mutex_;
    std::set<std::shared_ptr<Session>> open_;  // guarded by mutex_
  };

  void Enqueue(Work work);  // any thread
  void RunBatch();
  Status ApplyBatch(std::vector<Work>& batch);
  void Recover();
  void Flush();
  void TellWatchers(const Outbox& outbox);
  void TellQueues();
  void ArmWake();

  template <typename Request, typename Reply>
  void ServeUnary(const std::string& method, Result<Reply> (*op)(State&, const rpc::Peer&, const Request&));
  void ServeStreams();
  void ServePeople();
  void ServeSignIn();
  template <typename Reply>
  void Audit(const rpc::Peer& peer, const AuditedAct& act, const Result<Reply>& answer);
  void AuditRefused(const rpc::Peer& peer, const std::string& what, const Error& why);
  // As the function of access/access.h; a refusal is in the audit log.
  Status MayCallHere(const std::string& method, const rpc::Peer& peer);
  void OnAgentMessage(const std::shared_ptr<AgentSession>& session, std::string bytes);
  void OnAgentClosed(const std::shared_ptr<AgentSession>& session);
  void OnWatchMessage(const std::shared_ptr<WatchSession>& session, std::string bytes);
  void SweepLeases();
  void DropOld();
  void EndRevoked();
  void TellShutOut();
  void CancelOfShutOut();

  std::map<std::string, rpc::Server::UnaryHandler> unary_;  // by method; not changed after Start
  Observer observer_;
  Counters counters_;
  JobTraces traces_;
  const people::Members* members_ = nullptr;
  Authority authority_;
  std::unique_ptr<SignIn> sign_in_;
  EventLoop* const loop_;
  Store* const store_;
  State state_;
  CallLimiter limiter_;
  CallLimiter node_streams_;  // by node
  NodeTimeoutDuty leases_;
  RetentionDuty retention_;
  notify::Sender* sender_ = nullptr;
  bool broken_ = true;                  // the state does not match the store
  EventLoop::TimerId wake_ = 0;         // the scheduler's next wake-up
  EventLoop::TimerId tell_queues_ = 0;  // armed while moved_pools_ is not empty
  std::set<std::string> moved_pools_;

  Mutex mu_;
  std::vector<Work> inbox_;  // guarded by mu_

  std::map<std::string, std::shared_ptr<AgentSession>> agents_;  // registered nodes, by name
  std::string shut_out_;                                         // serialized v1.ShutOut, as nodes were told last
  Sessions<AgentSession> agent_sessions_;
  Sessions<WatchSession> watch_sessions_;
  std::map<uint64_t, std::set<WatchSession*>> watchers_;  // by job
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace vrun::control
