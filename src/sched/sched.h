// SPDX-License-Identifier: Apache-2.0
// The scheduler: pure, deterministic, no I/O, no clock, no threads. Who owns the State feeds it events and executes the
// actions; the same events give the same actions, in the same order, always.
//
// Policy of this version: per pool strictly first in, first out, on milli-cpus, memory and whole GPUs of one type. The
// head of a queue that does not fit holds up what is behind it. Among the nodes that fit, the one with the fewest GPUs
// left over wins (so that work without GPUs stays off GPU nodes), then the fewest milli-cpus, then the least memory,
// then the lowest name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace vrun::sched {

using JobId = uint64_t;

// What a job takes or a node has. A job that names no cpus is accounted one core by its owner before it comes here.
struct Resources {
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int64_t gpus = 0;
  std::string gpu_type;  // of a job: "" is any
  bool operator==(const Resources&) const = default;
};

// --- events ---

// A node is there: new, back, or changed. What runs on it stays accounted.
struct NodeUp {
  std::string name;
  std::string pool;
  Resources total;
};
// Nothing is placed on it until it is up again; what runs on it stays accounted.
struct NodeLost {
  std::string name;
};
struct NodeDrained {
  std::string name;
};
// Joins the end of its pool's queue. Jobs known already are ignored.
struct JobSubmitted {
  JobId job;
  std::string pool;
  Resources needs;
};
// A pending job leaves the queue.
struct JobCancelled {
  JobId job;
};
// The job holds resources there by an earlier decision (the owner was restarted). Believed even if they exceed the
// node.
struct JobStarted {
  JobId job;
  std::string node;
  Resources needs;
};
// What it held is free again.
struct JobEnded {
  JobId job;
};
struct Tick {};
using Event = std::variant<NodeUp, NodeLost, NodeDrained, JobSubmitted, JobCancelled, JobStarted, JobEnded, Tick>;

// --- actions ---

// The job is accounted on the node from now on.
struct Place {
  JobId job;
  std::string node;
  Resources needs;
};
using Action = std::variant<Place>;

// Why a job waits.
struct Waiting {
  uint32_t position = 0;  // in its pool; 1 = next
  std::string reason;     // "needs 2 gpus; the best node of pool local has 1 free"
};

class State;

// Applies the events in order, then places what can be placed. `now` (microseconds, any origin, never decreasing) is
// the only time that it knows.
std::vector<Action> Step(State& state, std::span<const Event> events, int64_t now);

// kInvalid when no node of the pool, up or not, could ever run it; fine while the pool has no node at all.
Status Feasible(const State& state, const std::string& pool, const Resources& needs);

// nullopt when the job is not pending.
std::optional<Waiting> Explain(const State& state, JobId job);
// The pending jobs of a pool, next first.
std::vector<JobId> Queue(const State& state, const std::string& pool);

// Everything that the scheduler knows. Only the functions above look inside.
class State {
 public:
  State();
  ~State();
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;

  struct NodeUse {
    Resources total;
    Resources used;
    uint32_t jobs = 0;
    bool up = false;
  };
  std::optional<NodeUse> Node(const std::string& name) const;

  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace vrun::sched
