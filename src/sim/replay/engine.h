// SPDX-License-Identifier: Apache-2.0
// Replays a trace of gang jobs against a policy on n equal nodes with discrete events in integer microseconds. Random
// numbers come from a seed, so the same input gives the same result bit for bit.
//
// The executor. A job that starts holds its GPUs at once, becomes productive after `start_latency` and ends when its
// duration has been worked off. A preempted job either saves (it holds its GPUs for `save` longer and loses nothing) or
// is killed (its GPUs are free at once, and it falls back to its last multiple of `checkpoint` of work; 0: checkpoints
// are free and always current). Each preemption adds a `restore`, which the job does with its GPUs held before it works
// again. A restore that is interrupted by the next preemption is continued later, in addition to the new one.
//
// Nodes fail and are repaired. Jobs on a node that fails lose all their nodes at once: they fall back to their last
// checkpoint as after a kill, owe a restore, and wait again. Some nodes are slow: a gang runs at the pace of its
// slowest node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/replay/gang_nodes.h"
#include "sim/replay/job_trace.h"

namespace vrun::sim {

using JobIndex = uint32_t;  // into JobTrace::jobs

struct EngineConfig {
  int32_t nodes = 64;
  int32_t gpus_per_node = 8;
  // Running jobs may move at no cost at any time: only the number of GPUs matters, not the node. This is optimistic,
  // but the published figures of preemptive policies are made like this.
  bool free_moves = false;
  int64_t start_latency_us = 0;
  int64_t save_us = 0;
  int64_t restore_us = 0;
  int64_t checkpoint_us = 0;
  // Mean time of a node from up to down, exponentially distributed; 0: never.
  int64_t node_mtbf_us = 0;
  int64_t node_repair_us = 0;
  // This percentage of the nodes, chosen by the seed, needs `slow_percent` % of the others' time (100 or more).
  int32_t slow_nodes_percent = 0;
  int32_t slow_percent = 100;
  uint64_t seed = 1;
  // Is told now and then how many jobs have ended.
  std::function<void(size_t ended)> progress = {};

  bool HasFaults() const { return node_mtbf_us > 0; }
  bool HasStragglers() const { return slow_nodes_percent > 0 && slow_percent > 100; }
};

enum class JobState : uint8_t { kFuture, kWaiting, kRunning, kSaving, kDone };

// The state of a job, and its result once it has ended.
struct JobRecord {
  JobState state = JobState::kFuture;
  int64_t first_start_us = -1;
  int64_t end_us = -1;
  int64_t worked_us = 0;  // of its duration, done and safe; work of the current attempt is added when the attempt ends
  int64_t held_us = 0;    // time with GPUs, of ended attempts
  int64_t lost_us = 0;    // of held_us: starting, saving, restoring, waiting for slow nodes, and lost work
  int64_t owed_us = 0;    // time to restore before it works again
  int32_t preemptions = 0;
  int32_t failures = 0;  // failures of its nodes while it ran
  // The current attempt:
  int64_t started_us = 0;
  int64_t productive_us = 0;   // when work begins
  int32_t pace_percent = 100;  // time per unit of its duration
  int64_t save_began_us = 0;   // kSaving
  int64_t unsaved_us = 0;      // kSaving: part of worked_us that this save makes safe
  Placement placement;         // empty when free_moves
};

enum class Stop { kSave, kKill };

class Engine;

// Makes the decisions. One policy object serves one replay.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual void Submitted(Engine&, JobIndex) {}
  // Ended: the job has ended. Vacated: the GPUs of a preempted job are free again, and it waits.
  virtual void Ended(Engine&, JobIndex) {}
  virtual void Vacated(Engine&, JobIndex) {}
  // One of its nodes has failed while the job ran, and the job waits. (If it was saving: Vacated.)
  virtual void Failed(Engine& engine, JobIndex i) { Submitted(engine, i); }
  // The node is down (its free GPUs are 0), or up again.
  virtual void NodeDown(Engine&, int32_t) {}
  virtual void NodeUp(Engine&, int32_t) {}
  // Called after all events of one instant. Starts and preempts jobs through the engine.
  virtual void Schedule(Engine&) = 0;
};

struct RunResult {
  std::vector<JobRecord> jobs;  // as in the trace
  int64_t end_us = 0;           // of the last job
  int64_t capacity = 0;         // GPUs
  int64_t passes = 0;           // calls of Policy::Schedule
  int64_t node_failures = 0;
};

class Engine {
 public:
  // Runs to the end. kInvalid when a job is larger than the cluster; kInternal when the policy leaves jobs waiting
  // forever. The trace must live as long as the call.
  static Result<RunResult> Run(const JobTrace& trace, const EngineConfig& config, Policy& policy);

  // --- for policies ---
  int64_t now() const { return now_; }
  const EngineConfig& config() const { return config_; }
  const GangNodes& nodes() const { return nodes_; }
  int64_t free_gpus() const { return free_gpus_; }
  int32_t nodes_up() const { return config_.nodes - nodes_down_; }
  bool IsDown(int32_t node) const { return nodes_down_ > 0 && is_down_[static_cast<size_t>(node)]; }
  const TraceJob& job(JobIndex i) const { return trace_.jobs[i]; }
  const JobRecord& record(JobIndex i) const { return records_[i]; }
  // Jobs in state kRunning, in an unspecified but deterministic order.
  std::span<const JobIndex> running() const { return running_; }
  // How long the job has held its GPUs so far, which a scheduler can see.
  int64_t Held(JobIndex i) const;
  // Work and restoring still to do. Only oracles may ask.
  int64_t Remaining(JobIndex i) const;
  // When the job ends if left alone. Only oracles may ask. REQUIRES running.
  int64_t EndOf(JobIndex i) const;

  bool Fits(JobIndex i) const;
  // REQUIRES that the job waits and fits.
  void Start(JobIndex i);
  void StartAt(JobIndex i, Placement placement);
  // REQUIRES running.
  void Preempt(JobIndex i, Stop how);
  // Calls Schedule at that time, or at an earlier event. Each call of Schedule must ask again.
  void WakeAt(int64_t time_us) { wake_us_ = std::min(wake_us_, time_us); }

 private:
  struct Timer {
    int64_t at_us;
    JobIndex job;
    uint32_t attempt;  // the timer is stale when the job's attempt differs
    bool operator>(const Timer& o) const { return at_us != o.at_us ? at_us > o.at_us : job > o.job; }
  };

  Engine(const JobTrace& trace, const EngineConfig& config);
  Status Loop(Policy& policy);
  void Fire(const Timer& timer, Policy& policy);
  void FireNode(Policy& policy);
  void NextFailure(int32_t node);
  void FailJobsOn(int32_t node, Policy& policy);
  void LoseSave(JobIndex i);
  void Begin(JobIndex i);
  void Release(JobIndex i);
  void LeaveRunning(JobIndex i);
  void SetTimer(JobIndex i, int64_t at_us);
  int64_t WorkedInAttempt(JobIndex i) const;
  int64_t AfterCheckpoint(int64_t worked_us) const;

  const JobTrace& trace_;
  const EngineConfig config_;
  GangNodes nodes_;
  int64_t free_gpus_;
  std::vector<JobRecord> records_;
  std::vector<uint32_t> attempts_;
  std::vector<uint32_t> running_at_;  // index in running_
  std::vector<JobIndex> running_;
  std::vector<Timer> timers_;  // heap
  struct NodeTimer {
    int64_t at_us;
    int32_t node;
    bool operator>(const NodeTimer& o) const { return at_us != o.at_us ? at_us > o.at_us : node > o.node; }
  };
  // With faults, by node: the next failure or repair (a heap), the number of failures, whether it is down.
  std::vector<NodeTimer> node_timers_;
  std::vector<uint64_t> times_failed_;
  std::vector<bool> is_down_;
  int32_t nodes_down_ = 0;
  int64_t node_failures_ = 0;
  std::vector<bool> is_slow_;  // by node, with stragglers only
  int64_t now_ = 0;
  int64_t wake_us_ = 0;
  int64_t passes_ = 0;
  size_t done_ = 0;
  size_t told_ = 0;  // of done_, to EngineConfig::progress
};

}  // namespace vrun::sim
