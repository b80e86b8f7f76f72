// SPDX-License-Identifier: Apache-2.0
// Removes what is older than the configuration says ([retention]): jobs, of which sums by day are left, and lines of
// the audit log.
//
// A job stays while an unfinished job depends on it, and an element while its array has not ended long enough ago. Each
// run takes little time, in a transaction: a job's intervals are added to the days in the same one that removes them,
// so nothing is counted twice or lost when the controller ends in between.
#pragma once

#include <cstdint>

#include "control/state/state.h"
#include "people/members.h"

namespace vrun::control {

class RetentionDuty {
 public:
  // Call this long after the last run: sooner while there is more to do.
  int64_t pause_micros() const { return busy_ ? kBusyMicros : kIdleMicros; }
  // State thread, inside a transaction. `members`: null without an audit log.
  Status Run(State& state, const people::Members* members);

 private:
  static constexpr int64_t kBusyMicros = 100'000, kIdleMicros = 10'000'000;

  Status DropJobs(State& state, int64_t ended_before);
  void RotateAudit(State& state, const people::Members& members);

  bool busy_ = false;
  OldJob last_;                // of this sweep over all old jobs
  int64_t next_sweep_ = 0;     // monotonic
  int64_t next_rotation_ = 0;  // monotonic
};

}  // namespace vrun::control
