// SPDX-License-Identifier: Apache-2.0
// The history of a cluster as a trace that vrun-sim replays (src/sim/replay/job_trace.h). Pure: others ask for it.
//
// The trace has no names of people and jobs: recurring work of one user has the same number, and so has the share of
// somebody without a team, which the scheduler calls by his name.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto/local.pb.h"

namespace vrun::history {

// Wall clock, microseconds: jobs that were submitted in [since, until).
struct Span {
  int64_t since_us = 0;
  int64_t until_us = 0;
};

// Jobs of the span. Those that are left out are of no use to a replay.
struct Counts {
  uint64_t jobs = 0;          // in the trace
  uint64_t running = 0;       // of these: they have not ended, and count with their time so far
  uint64_t hidden = 0;        // left out: the caller does not see them
  uint64_t waiting = 0;       // left out: nobody knows how long they would run
  uint64_t never_ran = 0;     // left out: cancelled, or failed to start
  uint64_t without_gpus = 0;  // left out
  uint64_t parts = 0;         // left out: they use a part of a GPU
};

class Trace {
 public:
  explicit Trace(const Span& span) : span_(span) {}

  // Names of the configured teams. Before any job is added.
  void SetTeams(std::set<std::string> teams) { teams_ = std::move(teams); }
  // In any order.
  void AddEnded(const v1::Account& account);
  // `now_us`: wall clock.
  void AddUnfinished(const v1::JobInfo& job, int64_t now_us);

  const Counts& counts() const { return counts_; }
  // In order of submissions.
  std::string Text() const;

 private:
  struct Times {
    int64_t work_us = 0;   // of each pod
    int64_t wait_us = -1;  // -1: not known
    int64_t held_us = 0;   // of each pod
    uint32_t preemptions = 0;
  };
  // Whether it is of the span and may be replayed; counts it.
  bool Wants(const v1::JobInfo& job);
  void Add(const v1::JobInfo& job, const Times& times);
  std::string TeamOf(const v1::JobInfo& job);

  const Span span_;
  Counts counts_;
  std::set<std::string> teams_;
  std::map<std::string, size_t> alone_;                            // users without a team
  std::map<std::pair<std::string, std::string>, size_t> kinds_;    // by user and name
  std::multimap<std::pair<int64_t, uint64_t>, std::string> rows_;  // by submission and id
};

// What the replay knows nothing of, in one line: "left out: 3 jobs that wait, ...". "": nothing.
std::string Describe(const Counts& counts);

// A name as one field of a table.
std::string Cell(const std::string& name);

}  // namespace vrun::history
