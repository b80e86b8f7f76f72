// SPDX-License-Identifier: Apache-2.0
// What the controller believes: unfinished jobs, nodes, the scheduler's state. Rebuilt from the store at every start
// and after every failed transaction. The transitions that several operations share are here; ops/ and duties/ decide
// when.
//
// State thread only. Every change goes to the store in the same call; nothing leaves the process before the store has
// committed: messages and news collect in the outbox meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "control/store/store.h"
#include "proto/control.pb.h"
#include "sched/sched.h"

namespace vrun::control {

inline bool IsEnd(v1::JobState state) { return state >= v1::COMPLETED && state <= v1::OUT_OF_MEMORY; }

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
};

class State {
 public:
  State(Store* store, const Clock* clock, Settings settings)
      : store_(store), clock_(clock), settings_(std::move(settings)) {}

  // Forgets everything but who is connected, and reads the store.
  Status Load();

  Store& store() { return *store_; }
  const Clock& clock() const { return *clock_; }
  const Settings& settings() const { return settings_; }
  const sched::State& scheduler() const { return scheduler_; }
  std::map<std::string, Node>& nodes() { return nodes_; }
  const std::map<uint64_t, JobRow>& jobs() const { return jobs_; }  // unfinished
  Outbox& outbox() { return outbox_; }

  // Whether the pool exists: named in the settings, or a node of it has joined once.
  bool KnowsPool(const std::string& pool) const;
  std::vector<std::string> Pools() const;

  // --- jobs ---
  // Durable and in its queue, or placed already when there is room. The id.
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
  Status SendStart(const JobRow& job);  // (again)
  void SendStop(const std::string& node, uint64_t job, uint32_t attempt, int32_t signal, bool by_user);

  // --- what others may see ---
  v1::Placement PlacementOf(const JobRow& job) const;
  // Reads the store for jobs that have ended. kNotFound.
  Result<JobRow> Find(uint64_t id);
  Result<v1::JobEvent> EventOf(uint64_t id, const std::string& viewer);
  v1::JobInfo InfoOf(const JobRow& job, const std::string& viewer, size_t max_argv_bytes) const;

 private:
  Status Schedule(std::vector<sched::Event> events);
  Status Place(const sched::Place& place);
  Status Save(const JobRow& job);

  Store* const store_;
  const Clock* const clock_;
  const Settings settings_;
  sched::State scheduler_;
  std::map<uint64_t, JobRow> jobs_;
  std::map<std::string, Node> nodes_;
  uint64_t epoch_ = 0;
  Outbox outbox_;
};

sched::Resources ToSched(const v1::Resources& r);
v1::Resources ToProto(const sched::Resources& r);

}  // namespace vrun::control
