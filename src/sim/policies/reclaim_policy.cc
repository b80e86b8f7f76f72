// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "sim/policies/virtual_clusters.h"

namespace vrun::sim {
namespace {

class ReclaimPolicy : public Policy {
 public:
  ReclaimPolicy(const JobTrace& trace, const TeamShares& shares)
      : trace_(trace), shares_(shares), waiting_(shares.size()), has_(shares.size()) {}

  void Submitted(Engine&, JobIndex i) override { Wait(i); }
  void Vacated(Engine&, JobIndex i) override {
    --saving_;
    Wait(i);
  }

  void Schedule(Engine& engine) override {
    if (saving_ > 0) return;  // room is being freed: do not ask twice
    std::fill(has_.begin(), has_.end(), 0);
    for (JobIndex i : engine.running()) has_[TeamOf(i)] += engine.job(i).gpus;
    failed_.clear();
    JobIndex i = 0;
    while (Next(&i)) {
      const int32_t gpus = engine.job(i).gpus;
      const size_t team = TeamOf(i);
      if (!engine.Fits(i) && (has_[team] + gpus > shares_[team] || !Reclaim(engine, i))) {
        failed_.insert({team, gpus});
        continue;
      }
      if (saving_ > 0) return;
      waiting_[team][gpus].erase(i);
      has_[team] += gpus;
      engine.Start(i);
    }
  }

 private:
  size_t TeamOf(JobIndex i) const { return static_cast<size_t>(trace_.jobs[i].team); }
  void Wait(JobIndex i) { waiting_[TeamOf(i)][trace_.jobs[i].gpus].insert(i); }

  // The first-come job of the least served team, without the kinds of jobs that already failed.
  bool Next(JobIndex* out) const {
    bool any = false;
    size_t best = 0;
    for (size_t t = 0; t < shares_.size(); ++t) {
      bool first = true;
      JobIndex earliest = 0;
      for (const auto& [gpus, jobs] : waiting_[t]) {
        if (jobs.empty() || failed_.contains({t, gpus})) continue;
        if (first || *jobs.begin() < earliest) earliest = *jobs.begin();
        first = false;
      }
      // Compares has / share without dividing.
      if (first || (any && has_[t] * shares_[best] >= has_[best] * shares_[t])) continue;
      any = true;
      best = t;
      *out = earliest;
    }
    return any;
  }

  bool Reclaim(Engine& engine, JobIndex i) {
    std::vector<int64_t> has = has_;
    std::vector<JobIndex> victims(engine.running().begin(), engine.running().end());
    // Newest first.
    std::sort(victims.begin(), victims.end(), [&](JobIndex a, JobIndex b) {
      return std::pair(engine.record(a).started_us, a) > std::pair(engine.record(b).started_us, b);
    });
    GangNodes nodes = engine.nodes();
    std::vector<JobIndex> chosen;
    while (!nodes.Fits(engine.job(i).gpus)) {
      auto best = victims.end();
      int64_t most = 0;
      for (auto v = victims.begin(); v != victims.end(); ++v) {
        const size_t t = TeamOf(*v);
        const int64_t over = has[t] - engine.job(*v).gpus - shares_[t];
        if (t == TeamOf(i) || over < 0) continue;
        const int64_t more = has[t] * 1000 / shares_[t];
        if (more > most) most = more, best = v;
      }
      if (best == victims.end()) return false;
      has[TeamOf(*best)] -= engine.job(*best).gpus;
      nodes.Give(engine.record(*best).placement);
      chosen.push_back(*best);
      victims.erase(best);
    }
    for (JobIndex v : chosen) {
      has_[TeamOf(v)] -= engine.job(v).gpus;
      engine.Preempt(v, Stop::kSave);
      if (engine.record(v).state == JobState::kSaving) {
        ++saving_;
      } else {
        Wait(v);
      }
    }
    return true;
  }

  const JobTrace& trace_;
  const TeamShares& shares_;
  std::vector<std::map<int32_t, std::set<JobIndex>>> waiting_;  // by team and GPUs
  std::vector<int64_t> has_;                                    // GPUs, by team
  std::set<std::pair<size_t, int32_t>> failed_;
  int32_t saving_ = 0;
};

}  // namespace

std::unique_ptr<Policy> MakeReclaimPolicy(const JobTrace& trace, const TeamShares& shares) {
  return std::make_unique<ReclaimPolicy>(trace, shares);
}

}  // namespace vrun::sim
