// SPDX-License-Identifier: Apache-2.0
// A cluster that teams share: each has a part of it that is its own, and may use what others leave. What each got of
// its own is measured, and two ways to share are there to compare with: a part of the nodes for each (static), and
// reclaiming as KAI-Scheduler does it.
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

// GPUs that are a team's own, by index into JobTrace::teams.
using TeamShares = std::vector<int64_t>;

// A table `team,gpus`. kInvalid with file and line; also when the trace has a team that it does not name, or a gang
// larger than its team's part.
Result<TeamShares> ReadTeamShares(const std::string& text, const std::string& name, const JobTrace& trace);

struct TeamOutcome {
  std::string team;
  int64_t gpus = 0;
  int64_t jobs = 0;
  double avg_wait_s = 0;
  // Of the GPU time that it asked for and that was its own, the part that it did not get: in the worst week, and in
  // all.
  double worst_week_error_percent = 0;
  double error_percent = 0;
};

// Passes everything on to another policy and measures what each team gets. Both must outlive it.
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

  // Weeks in which a team asked for less than a tenth of what is its own are not looked at one by one; nor is what
  // comes after the last submission.
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

// In order of the share of its own that a team has, the least first; in a team by arrival, whatever fits. Who stays
// within its own and does not fit takes from teams that have more than theirs, the one with most first, the newest jobs
// first, none below its own. The shares must outlive it.
std::unique_ptr<Policy> MakeReclaimPolicy(const JobTrace& trace, const TeamShares& shares);

}  // namespace vrun::sim
