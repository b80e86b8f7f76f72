// SPDX-License-Identifier: Apache-2.0
// A model of Slurm 22.05 with sched/backfill, priority/basic and select/cons_tres: how a cluster behaves whose users
// state exact wall times. `bench/run slurm-backfill` compares it with the real one.
//
// At every event the main scheduler starts jobs in order of arrival until one does not fit. Every `interval` the
// backfill scheduler goes through the queue, starts what fits now and reserves room for the rest. It differs from EASY
// in three ways, which are modelled because they cause most of the waiting: every job has a reservation, not only the
// head; a reservation takes whole nodes, even if the job needs only a part; and the ends of running jobs are checked in
// windows that double (30 s, 1 min, ...), so a start in the far future is known only roughly. Wall times are whole
// minutes. Not modelled: the time that the scheduler itself needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "sim/replay/engine.h"

namespace vrun::sim {

// Slurm's own defaults.
struct SlurmParameters {
  int64_t interval_s = 30;    // bf_interval
  int64_t resolution_s = 60;  // bf_resolution
  int64_t window_min = 1440;  // bf_window: later starts are not reserved
  int64_t jobs_tested = 500;  // bf_max_job_test
  int64_t queue_depth = 100;  // default_queue_depth, of the main scheduler
};

// "bf_interval=60,bf_window=4320": the syntax of SchedulerParameters. kInvalid for names that are not modelled.
Result<SlurmParameters> ParseSlurmParameters(std::string_view text);

// Not for EngineConfig::free_moves.
std::unique_ptr<Policy> MakeSlurmPolicy(const SlurmParameters& parameters);

}  // namespace vrun::sim
