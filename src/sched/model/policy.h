// SPDX-License-Identifier: Apache-2.0
// Every weight of the scheduler and its default, in one place; a configuration file maps to this structure. One set of
// defaults is meant to be right from a laboratory of 8 GPUs to 80,000.
//
// Formulas (their sources: docs/decisions/0004-scheduler-core.md): with T the expected seconds to completion of a job
// of G GPUs, its cost of waiting per second is
//   omega = class_weight * fairness * growth * G^(1-beta)
// and its value density, by which it is ordered, rho = omega / (T * G) = class * fairness * growth / (T * G^beta).
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
  // With no history T is the level of the service attained: level_base * 4^k, the first above it.
  Micros level_base = 900 * kSecond;
  // To end by its deadline is worth so much more than to end, times the chance of it: one that will hardly make it is
  // in nobody's way, and is served as if it had none.
  int64_t deadline_weight = 4000;
  // A job that waited starvation_bound and starvation_stretch times its expected run time is served before others by
  // age, and gets a hold, whatever its size. Started so, it runs undisturbed for starvation_turn, and then its wait
  // counts anew.
  Micros starvation_bound = 8 * kHour;
  int64_t starvation_stretch = 20000;
  Micros starvation_turn = 4 * kHour;

  // --- run times learned ---
  int64_t history_min_samples = 8;     // a group with fewer (decayed) is not asked; the next larger is
  int64_t history_samples_kept = 500;  // older runs fade: the weight of all before is this many at most
  // Jobs of one group are siblings when each was submitted so soon after another; the probability that two siblings run
  // about equally long.
  Micros sibling_gap = 600 * kSecond;
  int64_t sibling_trust = 900;

  // --- checkpoints ---
  Micros default_save = 60 * kSecond;
  Micros default_restore = 120 * kSecond;

  // --- preemption ---
  bool preemption = true;
  int64_t theta = 1000;            // gain must exceed (1 + theta) * price
  int64_t quantum_factor = 6000;   // after a start: this many times save + restore undisturbed
  int64_t lost_budget = 15;        // GPU time lost to preemption at most, of capacity; class and guarantee may overdraw
  Micros lost_burst = 24 * kHour;  // of that capacity share, what may be spent at once
  Micros price_interval = 5 * kSecond;  // densities and prices of running jobs are at most this old
  int32_t preempt_attempts = 8;         // a pass
  int32_t preempt_domains = 8;          // compared for one gang
  int64_t repeat_victim = 100;          // a victim's price grows by this with each preemption suffered

  // --- holds and backfill ---
  int32_t holds = 16;  // gangs at most
  // Preemptive backfill: into held room may go what will cost less than this share of the holder's wait when evicted.
  int64_t backfill_price = 50;

  // --- teams ---
  int64_t fairness = 500;        // exponent of fair share / allocation
  int64_t fairness_span = 8000;  // that quotient stays within 1/span .. span
  Micros usage_half_life = 7 * 24 * kHour;
  int64_t usage_weight = 1000;  // k of the fair portion max(0, W + k * (W - U))

  // --- inference ---
  // Room left idle for it: what its demand grows by in such a window, in so many of a thousand windows; at most so many
  // thousandths of all room.
  Micros headroom_window = 60 * kSecond;
  int64_t headroom_quantile = 990;
  int64_t headroom_most = 20;

  // --- maintenance ---
  Micros maintenance_lead = 600 * kSecond;  // so long before a window nothing is started on its nodes

  // --- topology ---
  // Throughput by Level when a gang spans no more than it; what a preferred level is worth.
  std::array<int64_t, kLevels> throughput = {1000, 1000, 950, 850, 700, 700};

  // --- the pass ---
  Micros pass_interval = 10'000;        // a full pass at most this often; new urgent work is placed on every step
  Micros urge_interval = 60 * kSecond;  // a pass at least this often while jobs wait: worth changes with time alone
};

}  // namespace vrun::sched::core
