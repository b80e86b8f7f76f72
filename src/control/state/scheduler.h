// SPDX-License-Identifier: Apache-2.0
// The controller's scheduler core. Events are fed to it, each batch of requests gets one decision, and every step is
// recorded (journal.h), so that a restart restores the same state.
//
// The core's clock begins at the wall clock of the first start and then advances with the monotonic clock, so a jump of
// the wall clock has no effect. State thread only.
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

  // Forgets everything. Then call either Replay, or History and feed the events.
  void Reset();
  // kAborted, kCorrupt: the journal is unusable; call Reset.
  Status Replay(const std::vector<std::string>& rows);
  // Feeds past events, in order of time, from which run times and usage are learned. Call before any other event.
  void History(sched::core::Micros at, std::vector<sched::core::Event> events);

  void Feed(sched::core::Event event) { events_.push_back(std::move(event)); }
  bool fed() const { return !events_.empty(); }
  // Applies the fed events and decides.
  std::vector<sched::core::Action> Decide();
  // Returns the steps since the last call as a journal row; "" when nothing has to be written now. A step with no
  // outside event and no decision may wait for the next row.
  std::string TakeJournal();

  // The time on the core's clock.
  sched::core::Micros Now() const;
  // Microseconds until Decide must be called even if nothing is fed; nullopt: never.
  std::optional<int64_t> NextWake() const;
  const sched::core::State& state() const { return state_; }
  // For trials that are undone again (sched/engine/explain.h).
  sched::core::State& trial() { return state_; }
  size_t rows() const { return rows_; }  // in the journal so far

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
  v1::JournalSteps steps_;  // not returned by TakeJournal yet
  bool must_write_ = false;
  size_t rows_ = 0;
};

// The core's description of a job and of a node.
sched::core::JobSpec SpecOf(const JobRow& job);
sched::core::NodeSpec SpecOf(const NodeRow& node);
// Where a pod of a job of one role is.
sched::core::PodPlace PlaceOf(const PodRow& pod);
// Where the job runs, from its row.
sched::core::JobStarted StartedOf(const JobRow& job, sched::core::Micros since);
sched::core::Class ClassOf(v1::JobClass klass);

}  // namespace vrun::control
