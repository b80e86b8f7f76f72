// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/preemptive_policies.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "sim/policies/ranked_queue.h"

namespace vrun::sim {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Nodes by number of free GPUs, for when their identity does not matter.
class NodeCounts {
 public:
  NodeCounts(int32_t nodes, int32_t per_node) : per_node_(per_node), with_free_(per_node + 1, 0) {
    with_free_[per_node] = nodes;
    free_ = int64_t{nodes} * per_node;
  }
  int64_t free() const { return free_; }
  // Best fit. Returns false and takes nothing when there is no room.
  bool Take(int64_t gpus) {
    const int64_t whole = gpus / per_node_;
    const int64_t rest = gpus % per_node_;
    if (with_free_[per_node_] < whole) return false;
    with_free_[per_node_] -= static_cast<int32_t>(whole);
    if (rest > 0) {
      int64_t free = rest;
      while (free <= per_node_ && with_free_[free] == 0) ++free;
      if (free > per_node_) {
        with_free_[per_node_] += static_cast<int32_t>(whole);
        return false;
      }
      --with_free_[free];
      ++with_free_[free - rest];
    }
    free_ -= gpus;
    return true;
  }

 private:
  int64_t per_node_;
  int64_t free_ = 0;
  std::vector<int32_t> with_free_;
};

class PreemptivePolicy : public Policy {
 public:
  explicit PreemptivePolicy(const RankRule& rule) : rule_(rule) {}

  void Submitted(Engine& engine, JobIndex i) override { waiting_.Add({Rank(engine, i), i}); }
  void Vacated(Engine& engine, JobIndex i) override {
    saving_.erase(std::find(saving_.begin(), saving_.end(), i));
    waiting_.Add({Rank(engine, i), i});
  }

  // Jobs with claims on the node must look for other nodes.
  void NodeDown(Engine&, int32_t node) override {
    std::erase_if(claims_, [&](const Claim& claim) {
      return std::find(claim.nodes.begin(), claim.nodes.end(), node) != claim.nodes.end();
    });
  }

  void Schedule(Engine& engine) override {
    if (waiting_.empty()) return;
    running_.clear();
    for (JobIndex i : engine.running()) running_.push_back({Rank(engine, i), i});
    std::sort(running_.begin(), running_.end());
    Choose(engine);
    if (engine.config().free_moves) {
      StartAnywhere(engine);
    } else {
      StartInPlace(engine);
    }
    if (waiting_.empty()) return;
    for (JobIndex i : engine.running()) {
      if (int64_t in = ChangesIn(engine, i); in != kNever) engine.WakeAt(engine.now() + in);
    }
  }

 private:
  struct Level {
    int64_t number = 0;
    int64_t left = kNever;  // of the measured quantity, until the next level
  };
  Level LevelOf(int64_t attained) const {
    if (rule_.by == RankRule::By::kSlices) {
      return {attained / rule_.quantum, rule_.quantum - attained % rule_.quantum};
    }
    Level level;
    for (int64_t end = rule_.quantum; level.number + 1 < rule_.levels; end *= rule_.growth, ++level.number) {
      if (attained < end) {
        level.left = end - attained;
        return level;
      }
    }
    return level;
  }
  int64_t Attained(const Engine& engine, JobIndex i) const {
    return engine.Held(i) * (rule_.by == RankRule::By::kSlices ? 1 : engine.job(i).gpus);
  }
  int64_t Rank(const Engine& engine, JobIndex i) const {
    switch (rule_.by) {
      case RankRule::By::kRemaining: return engine.Remaining(i);
      case RankRule::By::kRemainingGpuTime: return engine.Remaining(i) * engine.job(i).gpus;
      default: return LevelOf(Attained(engine, i)).number;
    }
  }
  // Microseconds until running makes a job's rank worse.
  int64_t ChangesIn(const Engine& engine, JobIndex i) const {
    if (rule_.by == RankRule::By::kRemaining || rule_.by == RankRule::By::kRemainingGpuTime) return kNever;
    const int64_t left = LevelOf(Attained(engine, i)).left;
    if (left == kNever || rule_.by == RankRule::By::kSlices) return left;
    return (left + engine.job(i).gpus - 1) / engine.job(i).gpus;
  }

  // Visits waiting and running jobs, best rank first, until visit returns false.
  template <typename Visit>
  void Merge(Visit visit) {
    const std::vector<Ranked>& waiting = waiting_.entries();
    size_t w = 0, r = 0;
    while (w < waiting.size() || r < running_.size()) {
      const bool takes_running = r < running_.size() && (w == waiting.size() || running_[r] < waiting[w]);
      const Ranked& entry = takes_running ? running_[r++] : waiting[w++];
      if (!visit(entry.job, takes_running)) return;
    }
  }

  // Chooses the jobs to run if only counts matter: to_start_ in order of rank, kept_ for running_.
  void Choose(Engine& engine) {
    NodeCounts room(engine.nodes_up(), engine.config().gpus_per_node);
    for (JobIndex i : saving_) room.Take(engine.job(i).gpus);
    to_start_.clear();
    kept_.assign(running_.size(), false);
    size_t r = 0;
    Merge([&](JobIndex i, bool is_running) {
      const bool chosen = room.Take(engine.job(i).gpus);
      if (is_running) {
        kept_[r++] = chosen;
      } else if (chosen) {
        to_start_.push_back(i);
      }
      return room.free() > 0;
    });
  }

  void StartAnywhere(Engine& engine) {
    for (size_t r = 0; r < running_.size(); ++r) {
      if (!kept_[r]) Evict(engine, running_[r].job);
    }
    for (JobIndex i : to_start_) {
      if (engine.Fits(i)) engine.Start(i);  // saving jobs may still hold what it needs
    }
    DropStarted(engine);
  }

  // The same choice when running jobs stay where they are. The chosen jobs take idle GPUs, then those of jobs that were
  // not chosen. If the rest is too scattered, they also take those of chosen jobs of worse rank, which start again
  // elsewhere.
  void StartInPlace(Engine& engine) {
    IndexRunning(engine);
    std::erase_if(claims_, [&](const Claim& claim) {
      return std::find(to_start_.begin(), to_start_.end(), claim.job) == to_start_.end();
    });
    for (JobIndex i : to_start_) {
      auto claim = std::find_if(claims_.begin(), claims_.end(), [&](const Claim& c) { return c.job == i; });
      if (claim == claims_.end() && !Unclaimed(engine, i).Fits(engine.job(i).gpus)) {
        if (!MakeRoom(engine, i)) continue;
        claim = claims_.end() - 1;
      }
      GangNodes room = Unclaimed(engine, i);
      if (!room.Fits(engine.job(i).gpus)) continue;
      engine.StartAt(i, room.Find(engine.job(i).gpus));
      if (claim != claims_.end()) claims_.erase(claim);
    }
    DropStarted(engine);
    // A job that lost its place may find another, and so may jobs after it.
    GangNodes room = Unclaimed(engine, kNobody);
    waiting_.Sweep([&](const Ranked& entry) {
      if (room.free_gpus() == 0) return RankedQueue::Next::kStop;
      if (!room.Fits(engine.job(entry.job).gpus)) return RankedQueue::Next::kKeep;
      Placement there = room.Find(engine.job(entry.job).gpus);
      room.Take(there);
      engine.StartAt(entry.job, std::move(there));
      return RankedQueue::Next::kTake;
    });
  }

  // GPUs that are idle and not claimed by others whose victims are still saving.
  GangNodes Unclaimed(const Engine& engine, JobIndex i) const {
    GangNodes out = engine.nodes();
    for (const Claim& claim : claims_) {
      if (claim.job == i) continue;
      for (int32_t node : claim.nodes) out.SetFree(node, 0);
    }
    return out;
  }

  void IndexRunning(const Engine& engine) {
    on_node_.assign(static_cast<size_t>(engine.config().nodes), {});
    for (size_t r = 0; r < running_.size(); ++r) {
      for (const NodeShare& s : engine.record(running_[r].job).placement) on_node_[s.node].push_back({r, s.gpus});
    }
  }

  // Preempts jobs of worse rank on the nodes where that disturbs least. Returns false and does nothing when it cannot
  // help.
  bool MakeRoom(Engine& engine, JobIndex i) {
    const Ranked me{Rank(engine, i), i};
    const int32_t per_node = engine.config().gpus_per_node;
    const int64_t gpus = engine.job(i).gpus;
    // Nodes by what must be taken from chosen jobs, then by what from others.
    struct Price {
      int64_t chosen = 0, others = 0;
      int32_t node = 0;
      bool operator<(const Price& o) const {
        return std::tie(chosen, others, node) < std::tie(o.chosen, o.others, o.node);
      }
    };
    std::vector<Price> prices;
    const int64_t want = std::min<int64_t>(gpus, per_node);
    for (int32_t node = 0; node < engine.config().nodes; ++node) {
      const auto holds = [&](const Claim& c) {
        return std::find(c.nodes.begin(), c.nodes.end(), node) != c.nodes.end();
      };
      if (std::any_of(claims_.begin(), claims_.end(), holds)) continue;
      Price price{.node = node};
      int64_t free = engine.nodes().FreeOn(node);
      for (const auto& [r, share] : Victims(engine, node, me)) {
        if (free >= want) break;
        free += share;
        (kept_[r] ? price.chosen : price.others) += engine.job(running_[r].job).gpus;
      }
      if (free >= want) prices.push_back(price);
    }
    const size_t nodes = static_cast<size_t>((gpus + per_node - 1) / per_node);
    if (prices.size() < nodes) return false;
    std::partial_sort(prices.begin(), prices.begin() + static_cast<ptrdiff_t>(nodes), prices.end());
    Claim claim{i, {}};
    for (size_t n = 0; n < nodes; ++n) {
      claim.nodes.push_back(prices[n].node);
      for (const auto& [r, share] : Victims(engine, prices[n].node, me)) {
        if (engine.nodes().FreeOn(prices[n].node) >= want) break;
        Evict(engine, running_[r].job);
      }
    }
    claims_.push_back(std::move(claim));
    return true;
  }

  // Running jobs on a node that rank behind `me`: jobs not chosen first, then the worst rank first.
  std::vector<std::pair<size_t, int32_t>> Victims(const Engine& engine, int32_t node, const Ranked& me) const {
    std::vector<std::pair<size_t, int32_t>> out;
    for (const auto& [r, share] : on_node_[static_cast<size_t>(node)]) {
      if (me < running_[r] && engine.record(running_[r].job).state == JobState::kRunning) out.push_back({r, share});
    }
    std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) {
      return kept_[a.first] != kept_[b.first] ? !kept_[a.first] : running_[b.first] < running_[a.first];
    });
    return out;
  }

  void Evict(Engine& engine, JobIndex i) {
    engine.Preempt(i, Stop::kSave);
    if (engine.record(i).state == JobState::kSaving) {
      saving_.push_back(i);
    } else {
      waiting_.Add({Rank(engine, i), i});
    }
  }

  void DropStarted(Engine& engine) {
    waiting_.Sweep([&](const Ranked& entry) {
      return engine.record(entry.job).state == JobState::kRunning ? RankedQueue::Next::kTake : RankedQueue::Next::kKeep;
    });
  }

  // The nodes on which jobs were preempted for this one.
  struct Claim {
    JobIndex job;
    std::vector<int32_t> nodes;
  };
  static constexpr JobIndex kNobody = std::numeric_limits<JobIndex>::max();

  const RankRule rule_;
  std::vector<Claim> claims_;
  RankedQueue waiting_;
  std::vector<JobIndex> saving_;
  // Per pass; members only to reuse their memory:
  std::vector<Ranked> running_;
  std::vector<bool> kept_;
  std::vector<JobIndex> to_start_;
  std::vector<std::vector<std::pair<size_t, int32_t>>> on_node_;  // (index into running_, GPUs there)
};

}  // namespace

std::unique_ptr<Policy> MakePreemptivePolicy(const RankRule& rule) { return std::make_unique<PreemptivePolicy>(rule); }

}  // namespace vrun::sim
