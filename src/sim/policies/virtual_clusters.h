// SPDX-License-Identifier: Apache-2.0
// A cluster shared by teams: each owns a part of it and may use what others leave idle. Measures how much of its own
// part each team got. For comparison there are two other ways to share: a fixed part of the nodes per team (static),
// and reclaiming as in KAI-Scheduler.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/policies/baselines.h"
#include "sim/replay/engine.h"

namespace vrun::sim {

inline constexpr BaselineInfo kStaticPolicy{"static", "with --teams: each team on nodes of its own, vrun on each"};
inline constexpr BaselineInfo kReclaimPolicy{
    "kai", "with --teams: least served team first, reclaims what is its own from the newest jobs of others"};

// GPUs that each team owns, by index into JobTrace::teams.
using TeamShares = std::vector<int64_t>;

// Reads a table `team,gpus`. kInvalid with file and line, also when a team of the trace is missing, or a gang is larger
// than its team's part.
Result<TeamShares> ReadTeamShares(const std::string& text, const std::string& name, const JobTrace& trace);

struct TeamOutcome {
  std::string team;
  int64_t gpus = 0;
  int64_t jobs = 0;
  double avg_wait_s = 0;
  // The share of its entitled GPU time (asked for and within its own part) that it did not get: in the worst week, and
  // overall.
  double worst_week_error_percent = 0;
  double error_percent = 0;
};

// Forwards to another policy and measures what each team gets. Both must outlive it.
class ShareMeter : public Policy {
 public:
  ShareMeter(const JobTrace& trace, const TeamShares& shares, Policy& inner);
  void Submitted(Engine& engine, JobIndex i) override;
  void Ended(Engine& engine, JobIndex i) override;
  void Vacated(Engine& engine, JobIndex i) override { inner_.Vacated(engine, i); }
  void Failed(Engine& engine, JobIndex i) override { inner_.Failed(engine, i); }
  void NodeDown(Engine& engine, int32_t node) override { inner_.NodeDown(engine, node); }
  void NodeUp(Engine& engine, int32_t node) override { inner_.NodeUp(engine, node); }
  void Schedule(Engine& engine) override;

  // Ignores, for the weekly values, weeks in which a team asked for less than a tenth of its own part, and everything
  // after the last submission.
  std::vector<TeamOutcome> Outcomes(const RunResult& result) const;

 private:
  struct Week {
    double entitled = 0, got = 0;  // GPU-seconds
  };
  void Measure(const Engine& engine);

  const JobTrace& trace_;
  const TeamShares& shares_;
  Policy& inner_;
  int64_t last_us_ = 0;
  std::vector<int64_t> demand_, used_;    // GPUs now, by team
  std::vector<std::vector<Week>> weeks_;  // by team
};

// Orders teams by how much of their own part they hold, least first; within a team by arrival, whatever fits. A job
// that stays within its team's part but does not fit takes GPUs from teams above their part: from the team most above
// it first, its newest jobs first, and never below that team's own part. The shares must outlive it.
std::unique_ptr<Policy> MakeReclaimPolicy(const JobTrace& trace, const TeamShares& shares);

}  // namespace vrun::sim
