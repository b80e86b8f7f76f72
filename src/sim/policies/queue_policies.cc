// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/queue_policies.h"

#include <limits>

#include "sim/policies/ranked_queue.h"

namespace vrun::sim {
namespace {

using Next = RankedQueue::Next;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t RankOf(const TraceJob& job, QueueOrder order) {
  switch (order) {
    case QueueOrder::kArrival: return 0;
    case QueueOrder::kDuration: return job.duration_us;
    case QueueOrder::kGpuTime: return job.duration_us * job.gpus;
    case QueueOrder::kDeadline: return job.deadlines.empty() ? kNever : job.submit_us + job.deadlines[0].after_us;
  }
  return 0;
}

class QueuePolicy : public Policy {
 public:
  QueuePolicy(QueueOrder order, bool blocking) : order_(order), blocking_(blocking) {}
  void Submitted(Engine& engine, JobIndex i) override { queue_.Add({RankOf(engine.job(i), order_), i}); }

  void Schedule(Engine& engine) override {
    // If a gang does not fit now, no larger gang does.
    int64_t too_large = kNever;
    queue_.Sweep([&](const Ranked& entry) {
      if (engine.free_gpus() == 0) return Next::kStop;
      const int64_t gpus = engine.job(entry.job).gpus;
      if (gpus < too_large && engine.Fits(entry.job)) {
        engine.Start(entry.job);
        return Next::kTake;
      }
      if (blocking_) return Next::kStop;
      // Gangs of whole nodes plus a remainder are different: more GPUs may fit although fewer do not.
      if (gpus <= engine.config().gpus_per_node || gpus % engine.config().gpus_per_node == 0) {
        too_large = std::min(too_large, gpus);
      }
      return Next::kKeep;
    });
  }

 private:
  const QueueOrder order_;
  const bool blocking_;
  RankedQueue queue_;
};

class EasyPolicy : public Policy {
 public:
  explicit EasyPolicy(double padding) : padding_(padding) {}
  void Submitted(Engine&, JobIndex i) override { queue_.Add({0, i}); }

  void Schedule(Engine& engine) override {
    const Ranked* head = nullptr;
    int64_t shadow = kNever;
    // GPUs that are free now and that the blocked head will not need at its start; used only with a blocked head.
    GangNodes spare = engine.nodes();
    queue_.Sweep([&](const Ranked& entry) {
      if (engine.free_gpus() == 0 && head != nullptr) return Next::kStop;
      if (head == nullptr) {
        if (engine.Fits(entry.job)) {
          engine.Start(entry.job);
          return Next::kTake;
        }
        head = &entry;
        shadow = Reserve(engine, entry.job, &spare);
        return Next::kKeep;
      }
      return Backfill(engine, entry.job, shadow, &spare) ? Next::kTake : Next::kKeep;
    });
  }

 private:
  int64_t Estimate(const Engine& engine, JobIndex i) const {
    const int64_t duration = engine.job(i).duration_us;
    if (padding_ <= 1) return duration;
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    const double uniform = static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1.0p-53;
    return static_cast<int64_t>(std::min(1e18, static_cast<double>(duration) * (1 + (padding_ - 1) * uniform)));
  }
  int64_t EstimatedEnd(const Engine& engine, JobIndex i) const {
    return engine.record(i).productive_us + Estimate(engine, i) - engine.record(i).worked_us;
  }

  // The earliest time at which the head fits if nothing else starts. *spare becomes what it leaves of the GPUs that are
  // free now. kNever, with nothing reserved for it, when too few nodes are up.
  int64_t Reserve(const Engine& engine, JobIndex head, GangNodes* spare) {
    ends_.clear();
    for (JobIndex i : engine.running()) ends_.push_back({EstimatedEnd(engine, i), i});
    std::sort(ends_.begin(), ends_.end());
    GangNodes later = engine.nodes();
    int64_t shadow = engine.now();
    for (const Ranked& end : ends_) {
      later.Give(engine.record(end.job).placement);
      shadow = end.rank;
      if (later.Fits(engine.job(head).gpus)) break;
    }
    if (!later.Fits(engine.job(head).gpus)) return kNever;  // not before nodes are repaired
    later.Take(later.Find(engine.job(head).gpus));
    for (int32_t node = 0; node < later.nodes(); ++node) {
      spare->SetFree(node, std::min(later.FreeOn(node), engine.nodes().FreeOn(node)));
    }
    return shadow;
  }

  bool Backfill(Engine& engine, JobIndex i, int64_t shadow, GangNodes* spare) {
    if (!engine.Fits(i)) return false;
    const JobRecord& record = engine.record(i);
    const int64_t takes = engine.config().start_latency_us + record.owed_us + Estimate(engine, i) - record.worked_us;
    const bool gone_by_then = takes <= shadow - engine.now();
    if (!gone_by_then && !spare->Fits(engine.job(i).gpus)) return false;
    Placement placement = (gone_by_then ? engine.nodes() : *spare).Find(engine.job(i).gpus);
    for (const NodeShare& share : placement) {
      const int32_t free_after = engine.nodes().FreeOn(share.node) - share.gpus;
      const int32_t left = gone_by_then ? spare->FreeOn(share.node) : spare->FreeOn(share.node) - share.gpus;
      spare->SetFree(share.node, std::min(left, free_after));
    }
    engine.StartAt(i, std::move(placement));
    return true;
  }

  const double padding_;
  RankedQueue queue_;
  std::vector<Ranked> ends_;
};

}  // namespace

std::unique_ptr<Policy> MakeQueuePolicy(QueueOrder order, bool blocking) {
  return std::make_unique<QueuePolicy>(order, blocking);
}

std::unique_ptr<Policy> MakeEasyPolicy(double padding) { return std::make_unique<EasyPolicy>(padding); }

}  // namespace vrun::sim
