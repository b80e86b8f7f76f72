// SPDX-License-Identifier: Apache-2.0
// All weights of the scheduler with their defaults. A configuration file maps to this structure. One set of defaults is
// meant to fit from a laboratory with 8 GPUs to 80,000 GPUs.
//
// Formulas (sources: docs/decisions/0004-scheduler-core.md): with T the expected seconds to completion of a job of G
// GPUs, its cost of waiting per second is
//   omega = class_weight * fairness * growth * G^(1-beta)
// and its value density, which orders the queue, is rho = omega / (T * G) = class * fairness * growth / (T * G^beta).
// Weights and exponents are thousandths.
#pragma once

#include <array>

#include "sched/model/model.h"

namespace vrun::sched::core {

struct Policy {
  // --- order ---
  // Worth of a second of waiting, by Class.
  std::array<int64_t, kClasses> class_weight = {62, 1000, 1000, 8000, 64000};
  // 0: shortest remaining time first, whatever the size; 1000: least remaining GPU time first, large gangs wait.
  int64_t beta = 125;
  // Growth of a job's worth: 1 + growth * wait / max(T, growth_floor).
  int64_t growth = 10;
  Micros growth_floor = 1800 * kSecond;
  // Without history T is the level of the service attained: the first level_base * 4^k above it.
  Micros level_base = 900 * kSecond;
  // Ending by its deadline is worth this much more than ending, times the chance to meet it. A job that will hardly
  // meet its deadline delays nobody: it is served as if it had none.
  int64_t deadline_weight = 4000;
  // A job starves after it has waited starvation_bound and starvation_stretch times its expected run time. Starved jobs
  // are served first, by age, and get a hold whatever their size. Started this way, a job runs undisturbed for
  // starvation_turn, and then its wait counts from zero.
  Micros starvation_bound = 8 * kHour;
  int64_t starvation_stretch = 20000;
  Micros starvation_turn = 4 * kHour;
  // Large gangs (more than 8 GPUs, without a deadline) have a bound on all of their wait, also between evictions:
  // starvation_bound and (turn_gang / G)^2 times what they have run. Beyond it they take turns of starvation_turn: they
  // may evict whoever has no turn, and run undisturbed. At most turn_share of the GPU time is spent on that. 0: as if
  // they were small.
  int64_t turn_share = 200;
  int64_t turn_gang = 54;  // GPUs

  // --- run times learned ---
  int64_t history_min_samples = 8;     // a group with fewer (decayed) samples is not used; the next larger group is
  int64_t history_samples_kept = 500;  // older runs fade: all runs before weigh at most this many
  // Jobs of one group are siblings when each was submitted within sibling_gap of another; sibling_trust is the
  // probability that two siblings run about equally long.
  Micros sibling_gap = 600 * kSecond;
  int64_t sibling_trust = 900;

  // --- checkpoints ---
  Micros default_save = 60 * kSecond;
  Micros default_restore = 120 * kSecond;

  // --- preemption ---
  bool preemption = true;
  int64_t theta = 1000;                 // gain must exceed (1 + theta) * price
  int64_t quantum_factor = 6000;        // after a start: undisturbed for this many times save + restore
  int64_t lost_budget = 15;             // most GPU time to lose to preemption, as a share of capacity; class, guarantee
                                        // and turns may overdraw
  Micros lost_burst = 24 * kHour;       // how much of that share may be spent at once
  Micros price_interval = 5 * kSecond;  // maximum age of the densities and prices of running jobs
  int32_t preempt_attempts = 8;         // per pass
  int32_t preempt_domains = 8;          // domains compared for one gang
  int64_t repeat_victim = 100;          // a victim's price grows by this with each preemption it has suffered

  // --- holds and backfill ---
  int32_t holds = 16;  // most gangs with a hold
  // Preemptive backfill: a job may use held room if its eviction will cost less than this share of the holder's wait.
  int64_t backfill_price = 50;

  // --- teams ---
  int64_t fairness = 500;        // exponent of fair share / allocation
  int64_t fairness_span = 8000;  // that quotient stays within 1/span .. span
  Micros usage_half_life = 7 * 24 * kHour;
  int64_t usage_weight = 1000;  // k of the fair share max(0, W + k * (W - U))

  // --- inference ---
  // Room left idle for inference: what its demand grows by within one headroom_window in headroom_quantile of a
  // thousand windows; at most headroom_most thousandths of all room.
  Micros headroom_window = 60 * kSecond;
  int64_t headroom_quantile = 990;
  int64_t headroom_most = 20;

  // --- maintenance ---
  Micros maintenance_lead = 600 * kSecond;  // nothing starts on a node this long before its window

  // --- topology ---
  // Throughput by Level when a gang stays within one domain of that level: what a preferred level is worth.
  std::array<int64_t, kLevels> throughput = {1000, 1000, 950, 850, 700, 700};

  // --- the pass ---
  Micros pass_interval = 10'000;        // minimum time between full passes; new urgent work is placed on every step
  Micros urge_interval = 60 * kSecond;  // maximum time between passes while jobs wait, because worth changes with time
                                        // alone
};

}  // namespace vrun::sched::core
