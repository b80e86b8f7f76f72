// SPDX-License-Identifier: Apache-2.0
// What the controller believes: unfinished jobs, nodes, the scheduler's state. Rebuilt from the store at every start
// and after every failed transaction. The transitions that several operations share are here; ops/ and duties/ decide
// when.
//
// State thread only. Every change goes to the store in the same call; nothing leaves the process before the store has
// committed: messages and news collect in the outbox meanwhile. What happens is told to the scheduler and decided upon
// once, by Decide, at the end of the transaction, which also holds the scheduler's journal.
//
// An attempt that has to give its room to another job: told to leave (JobRow::stopping) ─▶ its command is over, its
// room is free, the job is PENDING, its writes travel home (JobRow::leaving) ─▶ home has them: now the next attempt,
// which the scheduler may have placed meanwhile, is ordered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "control/state/explain.h"
#include "control/state/scheduler.h"
#include "control/state/scheduler_config.h"
#include "control/store/store.h"
#include "proto/control.pb.h"

namespace vrun::control {

inline bool IsEnd(v1::JobState state) { return state >= v1::COMPLETED && state <= v1::OUT_OF_MEMORY; }

// From its placement until its command is over: its writes may go home long after that.
inline bool HoldsResources(const JobRow& job) {
  return job.state != v1::PENDING && job.state != v1::COMPLETING && job.exit.empty() && !IsEnd(job.state);
}

struct Node {
  NodeRow row;
  bool connected = false;  // its stream is open and registered
  int64_t last_heard = 0;  // monotonic
};

// What is to be told once the store has committed.
struct Outbox {
  std::vector<std::pair<std::string, v1::ControllerMessage>> to_nodes;  // in order; dropped when the node is away
  std::set<uint64_t> jobs;                                              // changed: for those who watch them
  std::set<std::string> pools;                                          // whose queue has moved
};

class ContentTier;

struct Settings {
  int64_t heartbeat_micros = 2'000'000;
  int64_t lease_micros = 15'000'000;
  std::vector<std::string> pools;
  ContentTier* tier = nullptr;  // the pool's S3 store; not owned; null: none
  SchedulerConfig scheduler;
  size_t most_journal_rows = 50'000;  // the scheduler's journal is begun anew then: reading it back takes seconds
};

class State {
 public:
  State(Store* store, const Clock* clock, Settings settings)
      : store_(store), clock_(clock), settings_(std::move(settings)), scheduler_(clock, settings_.scheduler.weights) {}

  // Forgets everything but who is connected, and reads the store.
  Status Load();

  Store& store() { return *store_; }
  const Clock& clock() const { return *clock_; }
  const Settings& settings() const { return settings_; }
  const sched::core::State& scheduler() const { return scheduler_.state(); }
  std::map<std::string, Node>& nodes() { return nodes_; }
  const std::map<uint64_t, JobRow>& jobs() const { return jobs_; }  // unfinished
  Outbox& outbox() { return outbox_; }

  // Whether the pool exists: named in the settings, or a node of it has joined once.
  bool KnowsPool(const std::string& pool) const;
  std::vector<std::string> Pools() const;

  // --- the scheduler ---
  // At the end of a transaction: what was told to the scheduler since the last call is decided upon and carried out.
  Status Decide();
  // Microseconds until Decide wants to be called though nothing happens; nullopt: not at all.
  std::optional<int64_t> NextWake() const { return scheduler_.NextWake(); }
  // Other teams, from now on. The weights stay those of the start.
  void SetTeams(std::vector<TeamConfig> teams);
  // In its pool's queue, 1 = next; 0: it does not wait.
  uint32_t QueuePosition(uint64_t id);
  v1::WhyAnswer Explain(const JobRow& job);

  // --- jobs ---
  // Durable and in its queue. The id.
  Result<uint64_t> Add(JobRow job);
  // PENDING: ends. Otherwise the node is told, now and at each of its registrations. The job must be unfinished.
  Status Cancel(uint64_t id, int32_t signal);
  Status End(uint64_t id, v1::JobState state, const std::string& exit, const std::string& reason);
  // What a node says about an attempt. Stale and repeated reports are acknowledged without effect.
  Status Apply(const std::string& node, const v1::AttemptReport& report);

  // --- nodes ---
  Status PutNode(const NodeRow& row);  // and the scheduler may use it
  Status LoseNode(const std::string& name, const std::string& reason);
  void Disconnected(const std::string& name);  // not lost yet, but nothing is placed on it
  std::vector<uint64_t> JobsOn(const std::string& node) const;
  std::vector<uint64_t> JobsLeaving(const std::string& node) const;  // whose last attempt's writes are still there
  Status SendStart(const JobRow& job);                               // (again)
  void SendStop(const std::string& node, uint64_t job, uint32_t attempt, int32_t signal);
  // The attempt has ended otherwise than by itself, for certain: the job waits again if it may. False: it may not.
  Result<bool> Requeue(uint64_t id, const std::string& reason);
  // What the node of a job was told to do, again: after it was away.
  Status SendOrders(const JobRow& job);
  // The writes of an earlier attempt are home, or lost with their node.
  Status Left(uint64_t id);

  // --- what others may see ---
  // An attempt of it is on a node that knows of it, and home may go there.
  bool IsPlaced(const JobRow& job) const;
  // Placed, but writes that it may read are still on their way home: of an earlier attempt, or of a job that it comes
  // after. Its node has not been told.
  bool StartHeldBack(const JobRow& job) const;
  // What was said of its hard deadline; "": nothing.
  std::string DeadlineOf(uint64_t id) const;
  v1::Placement PlacementOf(const JobRow& job) const;
  // Reads the store for jobs that have ended. kNotFound.
  Result<JobRow> Find(uint64_t id);
  Result<v1::JobEvent> EventOf(uint64_t id, const std::string& viewer);
  v1::JobInfo InfoOf(const JobRow& job, const std::string& viewer, size_t max_argv_bytes);
  Status AddAttempts(uint64_t id, google::protobuf::RepeatedPtrField<v1::AttemptInfo>* to);

 private:
  // From its journal, or anew from the jobs.
  Status LoadScheduler(bool anew);
  void FeedTeams(const std::vector<TeamConfig>& gone);
  Status TeachHistory();
  bool Agrees() const;
  Status Carry(const sched::core::Place& place);
  Status Carry(const sched::core::Preempt& preempt);
  Status Carry(const sched::core::Hold&) { return {}; }
  Status Carry(const sched::core::Resize& resize);
  Status Carry(const sched::core::Admission& admission);
  Status Carry(const sched::core::Doomed& doomed);
  // A job that this one comes after and whose writes are not home yet, though its command is over; 0: none.
  uint64_t AwaitedBy(const JobRow& job) const;
  // Those that were held back for the job, which is gone.
  Status Release(const JobRow& ended);
  void Know(JobRow job);
  std::string Waiting(const JobRow& job);  // why, in one line
  Status Save(const JobRow& job);
  Status SaveAttempt(const JobRow& job, v1::JobState state, int64_t placed_us, int64_t ended_us,
                     const std::string& reason = "");
  Status BackToQueue(JobRow& job, sched::core::Micros lost, v1::JobState attempt_state, const std::string& reason);
  Status Preempted(JobRow& job, const v1::AttemptReport& report);
  void SendPreempt(const JobRow& job);

  Store* const store_;
  const Clock* const clock_;
  Settings settings_;
  Scheduler scheduler_;
  std::map<uint64_t, uint32_t> positions_;
  bool positions_known_ = false;
  std::vector<uint64_t> fresh_;  // added since the last Decide
  std::map<uint64_t, JobRow> jobs_;
  std::multimap<uint64_t, uint64_t> dependents_;           // of those not ended: by the job that they come after
  std::map<uint64_t, sched::core::Admission> admissions_;  // of those not ended, since this process began
  std::set<uint64_t> broken_promises_;                     // of these
  std::map<std::string, Node> nodes_;
  uint64_t epoch_ = 0;
  Outbox outbox_;
};

Needs ToNeeds(const v1::Resources& r);
v1::Resources ToProto(const Needs& r);

}  // namespace vrun::control
