// SPDX-License-Identifier: Apache-2.0
// Replays a trace of gang jobs against a policy on n equal nodes: discrete events, integer microseconds; chance comes
// from a seed, so the same input gives the same result bit for bit.
//
// The executor. A job that starts holds its GPUs at once, becomes productive after `start_latency` and ends when its
// duration has been worked off. One that is preempted either saves (holds its GPUs for `save` longer and loses nothing)
// or is killed (GPUs free at once, back to its last multiple of `checkpoint` of work; 0: checkpoints cost nothing and
// are always fresh). Each preemption owes a `restore`, done with the GPUs held before the job works again; one that is
// cut off by the next preemption goes on later, beside the new one.
//
// Nodes fail and are repaired. Jobs on a node that fails lose it all at once: they go back to their last checkpoint as
// after a kill, owe a restore, and wait again. Some nodes are slow: a gang works at the pace of its slowest node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/replay/gang_nodes.h"
#include "sim/replay/trace.h"

namespace vrun::sim {

using JobIndex = uint32_t;  // into JobTrace::jobs

struct EngineConfig {
  int32_t nodes = 64;
  int32_t gpus_per_node = 8;
  // Running jobs may move for nothing at any time: only counts matter, not which node. Optimistic; the calibration
  // figures of preemptive policies in the literature are made like this.
  bool free_moves = false;
  int64_t start_latency_us = 0;
  int64_t save_us = 0;
  int64_t restore_us = 0;
  int64_t checkpoint_us = 0;
  // Of each node, from up to down, exponentially distributed; 0: never.
  int64_t node_mtbf_us = 0;
  int64_t node_repair_us = 0;
  // So many of the nodes, chosen by the seed, need `slow_percent` % of the time that the others do (100 or more).
  int32_t slow_nodes_percent = 0;
  int32_t slow_percent = 100;
  uint64_t seed = 1;

  bool HasFaults() const { return node_mtbf_us > 0; }
  bool HasStragglers() const { return slow_nodes_percent > 0 && slow_percent > 100; }
};

enum class JobState : uint8_t { kFuture, kWaiting, kRunning, kSaving, kDone };

// What became of a job, and while it lives, where it stands.
struct JobRecord {
  JobState state = JobState::kFuture;
  int64_t first_start_us = -1;
  int64_t end_us = -1;
  int64_t worked_us = 0;  // of its duration, done and safe; of the current attempt only after it ended
  int64_t held_us = 0;    // time with GPUs, attempts that have ended
  int64_t lost_us = 0;    // of held_us: starting, saving, restoring, waiting for slow nodes, and work thrown away
  int64_t owed_us = 0;    // of restoring, before it works again
  int32_t preemptions = 0;
  int32_t failures = 0;  // of its nodes, under it
  // The current attempt:
  int64_t started_us = 0;
  int64_t productive_us = 0;   // from when it works
  int32_t pace_percent = 100;  // time that it needs for a unit of its duration
  int64_t save_began_us = 0;   // kSaving
  int64_t unsaved_us = 0;      // kSaving: of worked_us, what this save makes safe
  Placement placement;         // empty when free_moves
};

enum class Stop { kSave, kKill };

class Engine;

// Decides. One policy object serves one replay.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual void Submitted(Engine&, JobIndex) {}
  // It has ended, or (when it was preempted) its GPUs are free again and it waits.
  virtual void Ended(Engine&, JobIndex) {}
  virtual void Vacated(Engine&, JobIndex) {}
  // One of its nodes has failed while it ran, and it waits. (While it saved: Vacated.)
  virtual void Failed(Engine& engine, JobIndex i) { Submitted(engine, i); }
  // Nothing fits there (its free GPUs are 0), or it is back.
  virtual void NodeDown(Engine&, int32_t) {}
  virtual void NodeUp(Engine&, int32_t) {}
  // After everything that happened at one instant. Starts and preempts through the engine.
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
  // Runs to the end. kInvalid when a job is larger than the cluster; kInternal when the policy leaves jobs waiting for
  // ever. The trace must live as long as the call.
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
  // Jobs in states kRunning, in no particular but a deterministic order.
  std::span<const JobIndex> running() const { return running_; }
  // Time that it has held its GPUs so far: what a scheduler can see.
  int64_t Held(JobIndex i) const;
  // Work still to do, and restoring: only oracles may ask.
  int64_t Remaining(JobIndex i) const;
  // When it will end if left alone: only oracles may ask. REQUIRES running.
  int64_t EndOf(JobIndex i) const;

  bool Fits(JobIndex i) const;
  // REQUIRES waiting, and that it fits.
  void Start(JobIndex i);
  void StartAt(JobIndex i, Placement placement);
  // REQUIRES running.
  void Preempt(JobIndex i, Stop how);
  // Schedule is called then, if nothing happens before. Each call of Schedule must ask anew.
  void WakeAt(int64_t time_us) { wake_us_ = std::min(wake_us_, time_us); }

 private:
  struct Timer {
    int64_t at_us;
    JobIndex job;
    uint32_t attempt;  // stale when the job's differs
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
  // With faults, by node: the next failure or repair (a heap), how often it has failed, whether it is down.
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
};

}  // namespace vrun::sim
