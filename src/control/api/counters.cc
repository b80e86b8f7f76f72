// SPDX-License-Identifier: Apache-2.0
#include "control/api/counters.h"

#include <algorithm>

namespace vrun::control {

void Counters::Begin(const State& state) {
  recent_.Begin(state.clock().Wall());
  known_.clear();
  for (const auto& [id, job] : state.jobs()) known_[id] = {job.attempt, job.preemptions};
}

void Counters::Note(State& state, const std::set<uint64_t>& jobs) {
  for (const uint64_t id : jobs) {
    const auto job = state.jobs().find(id);
    const auto known = known_.find(id);
    if (job == state.jobs().end()) {
      // Told again about a job that has ended: it is known no more. (One that began and ended in one transaction has
      // never run: it was refused or cancelled at once.)
      if (known == known_.end()) continue;
      const auto end = state.store().StateOfJob(id);
      if (end && *end && IsEnd(**end)) ++ended_[**end];
      known_.erase(known);
      continue;
    }
    const JobRow& row = job->second;
    if (known == known_.end()) ++submitted_;
    Known& before = known_[id];
    if (before.attempt == 0 && row.attempt > 0) {
      const int64_t waited = std::max<int64_t>(state.clock().Wall() - row.submitted_us, 0);
      waits_.Add(static_cast<double>(waited) / 1e6);
      recent_.NoteStart(row.scheduling.team(), waited);
    }
    if (row.preemptions > before.preemptions) {
      preempted_ += row.preemptions - before.preemptions;
      recent_.NotePreemption(state, id, before.attempt);
    }
    before = {row.attempt, row.preemptions};
  }
}

}  // namespace vrun::control
