// SPDX-License-Identifier: Apache-2.0
// What the cluster costs at this moment, and how its free GPUs lie.
#pragma once

#include "control/state/state.h"
#include "proto/dashboard.pb.h"

namespace vrun::control {

// State thread. Sets `money`, without what was lost; nothing if the cluster has no prices.
void AddMoney(State& state, v1::ClusterNow* now);
// Of `now`'s nodes.
void AddFreeRoom(v1::ClusterNow* now);

// What the work of the last day has cost that failed attempts and preemptions have lost. Sums up at most so often that
// it takes a thousandth of the state thread.
class LostMoney {
 public:
  // State thread. Whenever there is time.
  void Look(State& state);
  int64_t micros() const { return micros_; }

 private:
  int64_t micros_ = 0;
  int64_t next_us_ = 0;  // monotonic
};

}  // namespace vrun::control
