// SPDX-License-Identifier: Apache-2.0
// The scheduler core as the controller has it: fed with what happens, asked once for each batch of requests, and
// written down step by step (journal.h), so that it is the same again after a restart.
//
// The core's clock begins at the wall clock of the first start and then runs with the monotonic one: a wall clock that
// jumps moves nothing. State thread only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "control/store/store.h"
#include "proto/journal.pb.h"
#include "sched/core.h"

namespace vrun::control {

class Scheduler {
 public:
  Scheduler(const Clock* clock, sched::core::Policy policy);

  // Forgets everything. Then either Replay or History and events.
  void Reset();
  // kAborted, kCorrupt: the journal is of no use; Reset.
  Status Replay(const std::vector<std::string>& rows);
  // What happened long ago, in order of time: it teaches run times and usage. Before anything else.
  void History(sched::core::Micros at, std::vector<sched::core::Event> events);

  void Feed(sched::core::Event event) { events_.push_back(std::move(event)); }
  bool fed() const { return !events_.empty(); }
  // Applies what was fed and decides.
  std::vector<sched::core::Action> Decide();
  // The steps since the last call as a row of the journal; "" when there is nothing that has to be written now. What
  // neither came from outside nor led to anything may wait for the next row.
  std::string TakeJournal();

  // Of the core's clock.
  sched::core::Micros Now() const;
  // Microseconds from now until Decide wants to be called though nothing was fed; nullopt: not at all.
  std::optional<int64_t> NextWake() const;
  const sched::core::State& state() const { return state_; }
  // For what is tried and undone (sched/engine/explain.h).
  sched::core::State& trial() { return state_; }
  size_t rows() const { return rows_; }  // of the journal so far

 private:
  void Record(sched::core::Micros now, std::span<const sched::core::Event> events,
              std::span<const sched::core::Action> actions);

  const Clock* const clock_;
  const sched::core::Policy policy_;
  sched::core::State state_;
  std::vector<sched::core::Event> events_;
  sched::core::Micros last_step_ = 0;
  int64_t offset_ = 0;  // core's clock - monotonic
  bool clock_set_ = false;
  v1::JournalSteps steps_;  // not taken yet
  bool must_write_ = false;
  size_t rows_ = 0;
};

// What the core is told of a job and of a node.
sched::core::JobSpec SpecOf(const JobRow& job);
sched::core::NodeSpec SpecOf(const NodeRow& node);
// Where the job is, by its row.
sched::core::JobStarted StartedOf(const JobRow& job, sched::core::Micros since);
sched::core::Class ClassOf(v1::JobClass klass);

}  // namespace vrun::control
