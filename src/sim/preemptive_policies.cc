// SPDX-License-Identifier: Apache-2.0
#include "sim/preemptive_policies.h"

#include <algorithm>
#include <limits>

#include "sim/ranked_queue.h"

namespace vrun::sim {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Nodes by number of free GPUs, when it does not matter which they are.
class NodeCounts {
 public:
  NodeCounts(int32_t nodes, int32_t per_node) : per_node_(per_node), with_free_(per_node + 1, 0) {
    with_free_[per_node] = nodes;
    free_ = int64_t{nodes} * per_node;
  }
  int64_t free() const { return free_; }
  // Best fit; false, and nothing taken, when there is no room.
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

  void Schedule(Engine& engine) override {
    if (waiting_.empty()) return;
    running_.clear();
    for (JobIndex i : engine.running()) running_.push_back({Rank(engine, i), i});
    std::sort(running_.begin(), running_.end());
    if (engine.config().free_moves) {
      ChooseCounts(engine);
    } else {
      ChoosePlaces(engine);
    }
    if (waiting_.empty()) return;
    for (JobIndex i : engine.running()) {
      if (int64_t in = ChangesIn(engine, i); in != kNever) engine.WakeAt(engine.now() + in);
    }
  }

 private:
  struct Level {
    int64_t number = 0;
    int64_t left = kNever;  // of the measured quantity, until the next
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
  // Microseconds until a running job's rank gets worse by running on.
  int64_t ChangesIn(const Engine& engine, JobIndex i) const {
    if (rule_.by == RankRule::By::kRemaining || rule_.by == RankRule::By::kRemainingGpuTime) return kNever;
    const int64_t left = LevelOf(Attained(engine, i)).left;
    if (left == kNever || rule_.by == RankRule::By::kSlices) return left;
    return (left + engine.job(i).gpus - 1) / engine.job(i).gpus;
  }

  // Visits waiting and running jobs, best rank first, until visit says false.
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

  void ChooseCounts(Engine& engine) {
    NodeCounts room(engine.config().nodes, engine.config().gpus_per_node);
    int64_t still = 0;  // running jobs that go on
    to_start_.clear();
    kept_.assign(kept_.size(), false);
    kept_.resize(running_.size(), false);
    size_t r = 0;
    Merge([&](JobIndex i, bool is_running) {
      const bool chosen = room.Take(engine.job(i).gpus);
      if (is_running) {
        kept_[r++] = chosen;
        still += chosen;
      } else if (chosen) {
        to_start_.push_back({i, {}});
      }
      return room.free() > 0;
    });
    if (still < static_cast<int64_t>(running_.size())) Evict(engine);
    StartChosen(engine);
  }

  void ChoosePlaces(Engine& engine) {
    // Free of those visited so far; and of those that are really idle.
    GangNodes room(engine.config().nodes, engine.config().gpus_per_node);
    GangNodes idle = engine.nodes();
    for (JobIndex i : saving_) room.Take(engine.record(i).placement);
    to_start_.clear();
    kept_.assign(kept_.size(), false);
    kept_.resize(running_.size(), false);
    size_t r = 0;
    Merge([&](JobIndex i, bool is_running) {
      if (is_running) {
        const Placement& here = engine.record(i).placement;
        kept_[r] = room.AllFree(here);
        if (kept_[r]) room.Take(here);
        ++r;
      } else if (room.Fits(engine.job(i).gpus)) {
        Placement there = (idle.Fits(engine.job(i).gpus) ? idle : room).Find(engine.job(i).gpus);
        room.Take(there);
        for (const NodeShare& s : there) idle.SetFree(s.node, std::max(0, idle.FreeOn(s.node) - s.gpus));
        to_start_.push_back({i, std::move(there)});
      }
      return room.free_gpus() > 0;
    });
    Evict(engine);
    StartChosen(engine);
    // Whoever lost its place may find another, and so may those behind it.
    waiting_.Sweep([&](const Ranked& entry) {
      if (room.free_gpus() == 0) return RankedQueue::Next::kStop;
      if (!room.Fits(engine.job(entry.job).gpus)) return RankedQueue::Next::kKeep;
      Placement there = room.Find(engine.job(entry.job).gpus);
      if (!engine.nodes().AllFree(there)) return RankedQueue::Next::kKeep;
      room.Take(there);
      engine.StartAt(entry.job, std::move(there));
      return RankedQueue::Next::kTake;
    });
  }

  void Evict(Engine& engine) {
    for (size_t r = 0; r < running_.size(); ++r) {
      if (kept_[r]) continue;
      const JobIndex i = running_[r].job;
      engine.Preempt(i, Stop::kSave);
      if (engine.record(i).state == JobState::kSaving) {
        saving_.push_back(i);
      } else {
        waiting_.Add({Rank(engine, i), i});
      }
    }
  }

  void StartChosen(Engine& engine) {
    if (to_start_.empty()) return;
    for (Start& start : to_start_) {
      if (engine.config().free_moves) {
        // Saving jobs may still hold what it needs.
        if (!engine.Fits(start.job)) continue;
        engine.Start(start.job);
      } else {
        if (!engine.nodes().AllFree(start.placement)) continue;
        engine.StartAt(start.job, std::move(start.placement));
      }
    }
    waiting_.Sweep([&](const Ranked& entry) {
      return engine.record(entry.job).state == JobState::kRunning ? RankedQueue::Next::kTake : RankedQueue::Next::kKeep;
    });
  }

  struct Start {
    JobIndex job;
    Placement placement;
  };
  const RankRule rule_;
  RankedQueue waiting_;
  std::vector<JobIndex> saving_;
  // Of one pass, kept for their memory:
  std::vector<Ranked> running_;
  std::vector<bool> kept_;
  std::vector<Start> to_start_;
};

}  // namespace

std::unique_ptr<Policy> MakePreemptivePolicy(const RankRule& rule) { return std::make_unique<PreemptivePolicy>(rule); }

}  // namespace vrun::sim
