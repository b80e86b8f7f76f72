// SPDX-License-Identifier: Apache-2.0
// The last hours of the cluster and of its jobs as curves: allocated against measured. In memory only, so it begins
// with the controller. Accounts are elsewhere (ops/accounts.cc).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "control/dashboard/money_now.h"
#include "control/state/state.h"
#include "proto/dashboard.pb.h"

namespace vrun::control {

// State thread.
class History {
 public:
  // How often to call Sample.
  static constexpr int64_t kSampleMicros = 5'000'000;

  void Sample(State& state);
  // Oldest first.
  void AddCluster(v1::ClusterNow* to) const;
  // What was lost in the last day; into `money`, if it is there.
  void AddLost(v1::ClusterNow* to) const;
  v1::JobUsageHistory Of(uint64_t job) const;

 private:
  struct JobPoint {
    int64_t at_us = 0;
    uint32_t percent = 0;
    uint64_t memory = 0;
  };
  // Thinned to half when it is full, so it always covers the whole job.
  struct Series {
    std::vector<JobPoint> points;
    int64_t step_us = 0;  // at least so long between two points
  };

  std::deque<v1::ClusterSample> cluster_;
  LostMoney lost_;
  std::map<uint64_t, Series> jobs_;
  std::deque<uint64_t> ended_;  // jobs with a series that are over, in order of their end
};

}  // namespace vrun::control
