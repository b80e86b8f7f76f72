// SPDX-License-Identifier: Apache-2.0
// The controller's spans of jobs (docs/guide/monitoring.md, Traces). Made from the rows of the store after each commit,
// so that a span says what happened, also when the controller was restarted meanwhile:
//
//   job                      submitted until over
//   ├── submit               until it was on disk
//   ├── queue                before each attempt, with why it waited
//   └── attempt              of each: placed until over; event: preempted
//       ├── place            until the order to the nodes was on disk
//       └── start            until all pods run
//
// Nodes and homes add theirs below `attempt` and `job`. Does nothing while no collector is configured.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "control/state/state.h"
#include "telemetry/telemetry.h"

namespace vrun::control {

// State thread.
class JobTraces {
 public:
  using Take = std::function<void(telemetry::Span)>;
  // `take`: where spans go instead of to the collector, also if there is none.
  explicit JobTraces(Take take = nullptr) : take_(std::move(take)) {}

  // These jobs are known from now on.
  void Begin(const State& state);
  // After a commit, about changed jobs.
  void Note(State& state, const std::set<uint64_t>& jobs);

 private:
  // What was told of an unfinished job.
  struct Known {
    bool submitted = false;                    // that was told, or it was to an earlier controller
    bool begun = false;                        // its trace was looked for
    std::optional<telemetry::JobTrace> trace;  // none: it is not traced
    uint32_t placed = 0;                       // the last attempt whose queue was told
    uint32_t over = 0;                         // the last one that was told as a whole
    bool started = false;                      // the present one
    std::string waits;                         // why it waits, or did last
    std::string stopping;                      // the present attempt was told to leave: why
    int64_t stopping_us = 0;
  };

  bool on() const { return take_ != nullptr || telemetry::Enabled(); }
  void Tell(telemetry::Span span) const;
  void Follow(State& state, const JobRow& job, Known* known) const;
  void TellAttempts(State& state, const JobRow& job, Known* known) const;
  void TellEnd(State& state, const JobRow& job, const Known& known) const;

  const Take take_;
  std::map<uint64_t, Known> known_;
};

}  // namespace vrun::control
