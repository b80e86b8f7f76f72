// SPDX-License-Identifier: Apache-2.0
// What happened since this process began, for /metrics. Gauges are read from the state when somebody asks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "control/dashboard/recent.h"
#include "control/state/state.h"

namespace vrun::control {

// As of Prometheus: counts[i] observations were at most bounds[i]; one more for those above.
template <size_t kBounds>
struct Histogram {
  std::array<double, kBounds> bounds;
  std::array<uint64_t, kBounds + 1> counts{};
  double sum = 0;
  void Add(double value) {
    size_t i = 0;
    while (i < kBounds && value > bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
};

// State thread.
class Counters {
 public:
  // Forgets nothing that was counted. These jobs are known from now on.
  void Begin(const State& state);
  // After a commit.
  void Note(State& state, const std::set<uint64_t>& jobs);
  void NoteDelivery(bool mail, bool sent) { ++deliveries_[{mail, sent}]; }
  void NotePass(int64_t micros) { passes_.Add(static_cast<double>(micros) / 1e6); }

  uint64_t submitted() const { return submitted_; }
  uint64_t preempted() const { return preempted_; }
  uint64_t deliveries(bool mail, bool sent) const {
    const auto found = deliveries_.find({mail, sent});
    return found == deliveries_.end() ? 0 : found->second;
  }
  const std::map<v1::JobState, uint64_t>& ended() const { return ended_; }
  const auto& waits() const { return waits_; }
  const auto& passes() const { return passes_; }
  const Recent& recent() const { return recent_; }

 private:
  struct Known {
    uint32_t attempt = 0;
    uint32_t preemptions = 0;
  };
  std::map<uint64_t, Known> known_;  // unfinished jobs
  uint64_t submitted_ = 0;
  uint64_t preempted_ = 0;
  std::map<std::pair<bool, bool>, uint64_t> deliveries_;  // by mail or webhook, and whether it was sent
  std::map<v1::JobState, uint64_t> ended_;
  Recent recent_;
  // Seconds from the submission to the first placement, and of a pass of the scheduler.
  Histogram<12> waits_{{1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 86400, 604800}};
  Histogram<12> passes_{{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
};

}  // namespace vrun::control
