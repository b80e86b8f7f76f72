// SPDX-License-Identifier: Apache-2.0
// Turns of large gangs. In the order of value density a gang of many GPUs that runs for days starts at once, is evicted
// for shorter work, and then waits for weeks: more short work always comes. So its wait is bounded by what it has run.
// Beyond the bound it is overdue and takes turns: it starts before all others, evicts whoever has no turn, and runs
// undisturbed until the turn ends. Its wait is not forgotten then: while it is overdue it takes turn after turn, unless
// a gang waits that is more overdue.
//
// The bound shrinks with the square of the number of GPUs: the wait of 64 GPUs for each hour of running is a quarter of
// that of 32. There are few such gangs, so their turns cost the others little, and an average over all jobs would not
// show that they wait.
//
// A budget bounds what turns cost the others, whatever is overdue: tokens of GPU time, a share of the cluster's. A turn
// is charged with its GPU time, and more when the gang takes a large part of the cluster, because then little is left
// that the others could use meanwhile.
#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
// Gangs above this take turns. Smaller jobs find room on one node, which becomes free often.
constexpr int64_t kLargeMilli = 8 * kMilli;
constexpr Micros kLongest = 365 * 24 * kHour;
// A turn is charged at most this many times.
constexpr int64_t kMostCharge = 16;
}  // namespace

// A job with a deadline has its own measure of what it may wait.
bool Core::TakesTurns(const Job& job) const {
  return policy_.turn_share > 0 && job.milli > kLargeMilli && job.spec.deadline == 0 && job.spec.deadline_steps.empty();
}

// log2 of wait / bound.
Log Core::OverdueBy(int64_t waited, int64_t bound) {
  return Log2(static_cast<uint64_t>(std::max<int64_t>(waited, 1))) -
         Log2(static_cast<uint64_t>(std::max<int64_t>(bound, 1)));
}

// The wait that a large gang must bear.
Micros Core::TurnWait(const Job& job) const {
  const auto size = static_cast<__int128>(job.milli) * job.milli;
  const auto patient = static_cast<__int128>(policy_.turn_gang * kMilli) * (policy_.turn_gang * kMilli);
  const auto run = static_cast<__int128>(std::min(ServedNow(job), kLongest) / kSecond) * patient / size;
  return policy_.starvation_bound + static_cast<Micros>(std::min<__int128>(run, kLongest / kSecond)) * kSecond;
}

bool Core::MayTakeTurn(const Job& job) const {
  return turn_tokens_ > 0 && job.phase == Phase::kPending && TakesTurns(job) &&
         now_ - job.waiting_since >= StarvationWait(job);
}

// In thousandths of GPU-seconds. The others have the rest of the cluster meanwhile: with half of it, everything takes
// them twice as long.
int64_t Core::TurnCost(const Job& job, Micros turn) const {
  const int64_t all = cluster_.total_milli();
  const int64_t rest = std::max({all - job.milli, all / kMostCharge, int64_t{1}});
  return static_cast<int64_t>(static_cast<__int128>(job.milli) * (turn / kSecond) * all / rest);
}

void Core::BeginTurn(Job* job) {
  job->turn_ends = now_ + policy_.starvation_turn;
  turn_tokens_ -= TurnCost(*job, policy_.starvation_turn);
}

// The rest of the turn is not charged.
void Core::EndTurn(Job* job) {
  if (!TakesTurns(*job)) return;
  if (job->turn_ends > now_) turn_tokens_ += TurnCost(*job, job->turn_ends - now_);
  job->turn_ends = 0;
}

// The next turn of gangs that are still overdue follows at once: that spares an eviction.
void Core::ServeTurns() {
  if (policy_.turn_share == 0) return;
  for (JobIndex j : running_) {
    Job& job = jobs_[j];
    if (job.turn_ends == 0 || job.turn_ends > now_ || !TakesTurns(job)) continue;
    job.turn_ends = 0;
    const Micros bound = StarvationWait(job);
    if (turn_tokens_ <= 0 || job.waited < bound) continue;
    if (OverdueBy(job.waited / 1000, bound / 1000) >= most_overdue_) BeginTurn(&job);
  }
}

}  // namespace vrun::sched::core
