// SPDX-License-Identifier: Apache-2.0
#include "control/duties/retention.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "control/money/day_sums.h"

namespace vrun::control {
namespace {

constexpr int64_t kSweepMicros = 60'000'000, kRotateMicros = 3600'000'000ll;
// A run is over after about this time, or this many jobs. What it has written must go to the disk too.
constexpr int64_t kMostMicros = 8'000;
constexpr int kMostJobs = 64;

// Those of the candidates that unfinished jobs name, and their arrays.
std::set<uint64_t> NamedByOthers(const State& state, const std::vector<OldJob>& candidates) {
  std::set<uint64_t> wanted, named;
  for (const OldJob& job : candidates) {
    wanted.insert(job.id);
    if (job.array != 0) wanted.insert(job.array);
  }
  for (const auto& [id, job] : state.jobs()) {
    const v1::Scheduling& s = job.scheduling;
    for (const auto* list :
         {&s.after(), &s.after_ok(), &s.after_not_ok(), &s.after_start(), &s.after_corresponding()}) {
      for (const uint64_t other : *list) {
        if (wanted.contains(other)) named.insert(other);
      }
    }
  }
  return named;
}

// Sums of several jobs, which are stored together.
class Days {
 public:
  explicit Days(Store* store) : store_(store) {}

  Status Add(uint64_t job) {
    VRUN_ASSIGN(const auto rows, store_->IntervalsOf(job));
    for (const auto& [holder, row] : rows) {
      if (row.job == job) AddToDays(row, &days_[holder]);
    }
    return {};
  }
  // Writes nothing if one of the days in the store cannot be read.
  Status Save() {
    for (auto& [holder, days] : days_) {
      for (auto& [day, sums] : days) {
        VRUN_ASSIGN(const std::string before, store_->GetDay(holder, day));
        VRUN_TRY(Merge(before, &sums));
      }
    }
    for (auto& [holder, days] : days_) {
      for (auto& [day, sums] : days) VRUN_TRY(store_->PutDay(holder, {day, Encode(std::move(sums))}));
    }
    return {};
  }

 private:
  Store* const store_;
  std::map<Holder, std::map<int64_t, DaySums>> days_;
};

}  // namespace

Status RetentionDuty::Run(State& state, const people::Members* members) {
  const Retention& retention = state.settings().scheduler.retention;
  const int64_t now = state.clock().Monotonic();
  if (members != nullptr && retention.audit > 0 && now >= next_rotation_) {
    next_rotation_ = now + kRotateMicros;
    RotateAudit(state, *members);
  }
  if (retention.jobs == 0 || (!busy_ && now < next_sweep_)) {
    busy_ = busy_ && retention.jobs != 0;
    return {};
  }
  // What is dropped is gone: not by a clock that is wrong for a moment.
  return DropJobs(state, std::min(state.clock().Wall(), state.AccountingNow()) - retention.jobs);
}

Status RetentionDuty::DropJobs(State& state, int64_t ended_before) {
  const int64_t began = MonotonicMicros();
  Store& store = state.store();
  VRUN_ASSIGN(const std::vector<OldJob> old, store.OldJobs(ended_before, last_, kMostJobs));
  busy_ = !old.empty();
  if (old.empty()) {
    last_ = {};
    next_sweep_ = state.clock().Monotonic() + kSweepMicros;
    return {};
  }
  const std::set<uint64_t> named = NamedByOthers(state, old);
  Days days(&store);
  std::vector<uint64_t> dropped;
  for (const OldJob& job : old) {
    last_ = job;
    const bool whole = job.array == 0 || (job.array_ended_us != 0 && job.array_ended_us < ended_before);
    if (!whole || named.contains(job.id) || named.contains(job.array)) continue;
    if (job.is_array) {
      VRUN_ASSIGN(const bool elements, store.HasElements(job.id));
      if (elements) continue;
    }
    VRUN_TRY(days.Add(job.id));
    dropped.push_back(job.id);
    if (MonotonicMicros() - began > kMostMicros / 2) break;
  }
  if (Status saved = days.Save(); !saved) {
    busy_ = false;
    next_sweep_ = state.clock().Monotonic() + kSweepMicros;
    LogError("old jobs are kept: {}", saved.error().message());
    return saved;
  }
  for (const uint64_t job : dropped) VRUN_TRY(store.DropJob(job));
  if (!dropped.empty()) LogDebug("{} jobs that ended long ago were removed", dropped.size());
  return {};
}

void RetentionDuty::RotateAudit(State& state, const people::Members& members) {
  const int64_t keep = state.settings().scheduler.retention.audit;
  const Result<int> removed =
      people::RotateAudit(members.audit_file(), std::min(state.clock().Wall(), state.AccountingNow()), keep);
  if (!removed) return LogError("audit: {}", removed.error().message());
  if (*removed > 0) {
    members.Audit({"", "controller", "here", "retention", std::to_string(*removed) + " months of the audit log", "ok"});
  }
}

}  // namespace vrun::control
