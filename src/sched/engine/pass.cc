// SPDX-License-Identifier: Apache-2.0
// A pass: the pending jobs in order of value density, each placed if possible. Everything here is integer arithmetic on
// logarithms.
#include <algorithm>
#include <bit>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
constexpr size_t kEstimatesPerPass = 4000;
// From this many entries on, a radix sort is faster than comparing.
constexpr size_t kRadixSort = 1000;
}  // namespace

// --- worth ---

// In 1/2^32 per millisecond of waiting.
int64_t Core::InverseOf(const Job& job) const {
  int64_t unit = std::max<int64_t>(std::max(job.estimate.expected, policy_.growth_floor) / 1000, 1);
  // The same with 64 bits, where division is much faster.
  if (policy_.growth < INT32_MAX) {
    return static_cast<int64_t>((static_cast<uint64_t>(policy_.growth) << 32) / 1000 / static_cast<uint64_t>(unit));
  }
  return static_cast<int64_t>((static_cast<unsigned __int128>(policy_.growth) << 32) / 1000 /
                              static_cast<uint64_t>(unit));
}

Log Core::GrowthOf(int64_t wait_ms, int64_t inverse) {
  uint64_t wait = static_cast<uint64_t>(std::clamp<int64_t>(wait_ms, 0, INT32_MAX * int64_t{16}));
  uint64_t growth = (uint64_t{1} << 16) + ((wait * static_cast<uint64_t>(inverse)) >> 16);
  return Log2(growth) - 16 * kLogOne;
}

Log Core::Growth(const Job& job) const {
  Micros wait = job.phase == Phase::kPending ? now_ - job.waiting_since : job.waited;
  return GrowthOf(wait / 1000, InverseOf(job));
}

// log2 of omega: the cost of a second of its waiting.
Log Core::WaitCost(const Job& job) const { return WaitCost(job, Growth(job)); }

Log Core::WaitCost(const Job& job, Log growth) const {
  Log size = Log2(static_cast<uint64_t>(std::max<int64_t>(job.milli, 125))) - Log2(kMilli);
  return Log2(static_cast<uint64_t>(policy_.class_weight[static_cast<int>(ClassOf(job))])) - Log2(1000) +
         teams_.Fairness(job.team) + growth + static_cast<Log>(int64_t{size} * (1000 - policy_.beta) / 1000);
}

// The slowly changing part of the density: class and deadline / (T * G^beta).
Log Core::Base(const Job& job) const {
  const Log base =
      Log2(static_cast<uint64_t>(policy_.class_weight[static_cast<int>(ClassOf(job))])) - job.estimate.rank;
  if (job.spec.deadline == 0 && job.spec.deadline_steps.empty()) return base;
  const auto worth = [&](Micros at, int64_t value) {
    return history_.ForDeadline(job.groups, job.estimate, ServedNow(job), at - now_,
                                policy_.deadline_weight * value / 1000);
  };
  Log most = job.spec.deadline > 0 ? worth(job.spec.deadline, 1000) : 0;
  // Each step of a deadline counts with the value that is lost after it.
  const std::vector<DeadlineStep>& steps = job.spec.deadline_steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t then = i + 1 < steps.size() ? steps[i + 1].value : 0;
    most = std::max(most, worth(steps[i].at, std::max<int64_t>(steps[i].value - then, 0)));
  }
  return base + most;
}

// A job beyond its team's budget is a scavenger.
Class Core::ClassOf(const Job& job) const { return teams_.OverBudget(job.team) ? Class::kScavenger : job.spec.klass; }

// log2 of rho, up to a constant.
Log Core::Density(const Job& job) const { return Base(job) + teams_.Fairness(job.team) + Growth(job); }

// The wait after which a job starves; scavengers never do.
Micros Core::StarvationWait(const Job& job) const {
  if (ClassOf(job) == Class::kScavenger) return kNever;
  if (TakesTurns(job)) return TurnWait(job);
  auto run = static_cast<__int128>(job.served + job.estimate.expected) * policy_.starvation_stretch / 1000;
  return policy_.starvation_bound + static_cast<Micros>(std::min<__int128>(run, kHour * 24 * 365));
}

// --- order ---

void Core::Order() {
  if (!pending_sorted_) {
    std::sort(pending_.begin(), pending_.end(),
              [](const Pending& a, const Pending& b) { return a.id != b.id ? a.id < b.id : a.stamp < b.stamp; });
    pending_sorted_ = true;
  }
  // Newly learned run times and deadlines change a job's worth: all jobs are re-estimated every minute, a part of a
  // long queue in each pass.
  size_t budget = 0;
  if (next_estimate_ > 0 || now_ - last_estimates_ >= policy_.urge_interval) {
    if (next_estimate_ == 0) last_estimates_ = now_;
    budget = kEstimatesPerPass;
  }
  const size_t from = next_estimate_;
  next_estimate_ = from + budget < pending_.size() ? from + budget : 0;
  const int64_t now_ms = now_ / 1000;
  order_.clear();
  most_overdue_ = 0;
  size_t kept = 0;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (stamps_[pending_[i].job] != pending_[i].stamp) continue;
    Pending& p = pending_[kept] = pending_[i];
    ++kept;
    if (i >= from && i < from + budget) {
      Job& job = jobs_[p.job];
      Estimate(p.job);
      p.base = Base(job);
      p.inverse = InverseOf(job);
      p.starves_ms = StarvationWait(job) / 1000;
    }
    int64_t wait_ms = now_ms - p.since_ms;
    Log key = p.base + teams_.Fairness(p.team) + GrowthOf(wait_ms, p.inverse);
    if (wait_ms >= p.starves_ms) {
      if (!p.turns) {
        key = kStarving + static_cast<Log>(std::min<int64_t>(wait_ms / 1000, kTurns - kStarving - 1));
      } else {
        const Log overdue = OverdueBy(wait_ms, p.starves_ms);
        most_overdue_ = std::max(most_overdue_, overdue);
        if (turn_tokens_ > 0) key = kTurns + overdue;
      }
    }
    order_.push_back({uint32_t{INT32_MAX} - static_cast<uint32_t>(key), static_cast<uint32_t>(kept - 1), p.demand});
  }
  pending_.resize(kept);
  // Ties: the lower id first.
  if (order_.size() < kRadixSort) {
    std::sort(order_.begin(), order_.end(),
              [](const Ordered& a, const Ordered& b) { return a.key != b.key ? a.key < b.key : a.index < b.index; });
    return;
  }
  // Radix sort, stable.
  scratch_.resize(order_.size());
  for (int shift = 0; shift < 33; shift += 11) {
    std::array<uint32_t, 2048> count{};
    for (const Ordered& o : order_) ++count[(o.key >> shift) & 2047];
    if (count[order_.empty() ? 0 : (order_[0].key >> shift) & 2047] == order_.size()) continue;
    uint32_t sum = 0;
    for (uint32_t& c : count) sum += std::exchange(c, sum);
    for (const Ordered& o : order_) scratch_[count[(o.key >> shift) & 2047]++] = o;
    order_.swap(scratch_);
  }
}

// --- the pass ---

void Core::Pass() {
  ++pass_;
  last_pass_ = now_;
  dirty_ = false;
  teams_.Share(cluster_.total_milli(), now_);
  Refill();
  free_milli_ = 0;
  for (NodeId n = 0; n < cluster_.size(); ++n) free_milli_ += cluster_.node(n).free_milli_total();
  headroom_.Advance(now_);
  headroom_target_ = headroom_.Target(cluster_.total_milli());
  if (inference_seen_) PrepareVictims();  // for the shelf
  ServeTurns();
  ServeHolds();
  GiveBack();
  Order();
  int32_t attempts = 0, reclaims = 0;
  for (const Ordered& o : order_) {
    DemandState& demand = demands_[o.demand];
    if (demand.pass != pass_) {
      demand.pass = pass_;
      demand.failed_level = -1;
      demand.no_preemption = demand.no_backfill = false;
      demand.no_reclaim.clear();
    }
    // Most of a long queue ends here, because a job with the same needs was tried before.
    const Pending& p = pending_[o.index];
    const bool may_reclaim =
        demand.no_preemption && reclaims < policy_.preempt_attempts / 2 && MayReclaim(p.team, demand);
    bool hopeless = demand.failed_level == static_cast<int>(demand.demand.required) && demand.no_preemption &&
                    !may_reclaim && (demand.no_backfill || holders_.empty());
    bool starves = o.key <= static_cast<uint32_t>(INT32_MAX - kStarving);
    // A starving job may still get a hold.
    bool may_hold = starves && hold_tries_ > 0 && holders_.size() < static_cast<size_t>(policy_.holds);
    if (hopeless && !may_hold) continue;
    JobIndex j = p.job;
    if (stamps_[j] != p.stamp) continue;  // served by its hold
    if (TryPlace(j, demand)) continue;
    if (!holders_.empty() && !demand.no_backfill && TryBackfill(j, demand)) continue;
    if (may_reclaim) {
      ++reclaims;
      if (TryPreempt(j, demand)) continue;
    } else if (policy_.preemption && !demand.no_preemption && attempts < policy_.preempt_attempts) {
      ++attempts;
      if (TryShrink(j, demand) || TryPreempt(j, demand)) continue;
    } else if (attempts >= policy_.preempt_attempts) {
      demand.no_preemption = true;
    }
    if (may_hold && jobs_[j].hold.empty() && now_ >= jobs_[j].no_hold_before) {
      --hold_tries_;
      // No success: other jobs get their turn first.
      if (!MakeHold(j)) jobs_[j].no_hold_before = now_ + policy_.urge_interval;
    }
  }
  hungry_ = false;
  if (!elastic_.empty()) GrowElastic();
  if (!promised_.empty()) ReviewPromises();
}

uint64_t Core::AlternativesAllowed(const Job& job, const Demand& demand) {
  uint64_t allowed = 0;
  for (size_t a = 0; a < demand.alternatives.size(); ++a) {
    std::vector<Teams::Charge> charges;
    if (job.milli > 0) {
      charges.push_back({teams_.Type(demand.alternatives[a].gpu_type), job.milli, 0});
    }
    if (teams_.Admits(job.team, charges, job.spec.preemptible).ok) allowed |= uint64_t{1} << a;
  }
  return allowed;
}

// A job waits for closer pods for as long as the slowdown without them would cost it. This costs at most twice the
// better choice in hindsight.
Micros Core::PatienceOf(const Job& job, const Demand& demand) const {
  int64_t near = policy_.throughput[static_cast<int>(demand.preferred)];
  int64_t far = std::max<int64_t>(policy_.throughput[static_cast<int>(demand.required)], 1);
  return static_cast<Micros>(static_cast<__int128>(job.estimate.expected) * std::max<int64_t>(near - far, 0) / far);
}

Level Core::WishOf(const Job& job, const Demand& demand) const {
  if (demand.preferred == demand.required) return demand.required;
  return now_ - job.waiting_since < PatienceOf(job, demand) ? demand.preferred : demand.required;
}

bool Core::TryPlace(JobIndex j, DemandState& demand) {
  Job& job = jobs_[j];
  job.wish = WishOf(job, demand.demand);
  if (static_cast<int>(job.wish) <= demand.failed_level) return false;
  uint64_t allowed = AlternativesAllowed(job, demand.demand);
  if (allowed == 0) return false;  // only its team is affected: other jobs with these needs may still start
  if (!LeavesHeadroom(job, job.milli)) {
    demand.failed_level = static_cast<int>(demand.demand.required);  // which holds for all jobs with these needs
    return false;
  }
  size_t mark = cluster_.Mark();
  std::optional<Placement> placed = placer_.Place(demand.demand, job.wish, allowed);
  if (!placed) {
    if (std::popcount(allowed) == static_cast<int>(demand.demand.alternatives.size())) {
      demand.failed_level = static_cast<int>(job.wish);
    }
    return false;
  }
  // With "any type", only the placement shows which types' quotas are charged.
  job.refused = teams_.Admits(job.team, ChargesOf(*placed), job.spec.preemptible);
  if (!job.refused.ok) {
    cluster_.Undo(mark);
    return false;
  }
  Start(j, std::move(*placed));
  return true;
}

// Its room is taken already.
void Core::Start(JobIndex j, Placement placement) {
  DropHold(j);
  RemovePending(j);
  Job& job = jobs_[j];
  job.placement = std::move(placement);
  job.charges = ChargesOf(job.placement);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  Begin(j);
}

void Core::Begin(JobIndex j) {
  Job& job = jobs_[j];
  job.started = job.saved = job.paced_since = now_;
  job.paced = 0;
  if (TakesTurns(job)) {
    if (turn_tokens_ > 0 && job.waited >= StarvationWait(job)) BeginTurn(&job);
  } else if (job.waited >= StarvationWait(job)) {
    job.turn_ends = now_ + policy_.starvation_turn;
    job.waited = 0;
  }
  Note(j, job.phase == Phase::kClaiming ? Decision::Kind::kStartedLate : Decision::Kind::kStarted, 0, {});
  job.phase = Phase::kRunning;
  Occupy(j);
  if (now_ - victims_at_ < policy_.price_interval) unpriced_.push_back(j);  // else all prices are computed anew anyway
  EmitPlace(j);
}

void Core::EmitPlace(JobIndex j) {
  const Job& job = jobs_[j];
  const auto& alternatives = demands_[job.demand].demand.alternatives;
  Place place{job.spec.id, {}, alternatives[job.placement.alternative].gpu_type};
  place.pods = PodsAt(job.placement, 0);
  actions_.push_back(std::move(place));
}

}  // namespace vrun::sched::core
