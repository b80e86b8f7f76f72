// SPDX-License-Identifier: Apache-2.0
// Calls silent nodes lost.
//
// A node that has sent nothing for one lease is lost. Its jobs of one pod become LOST, and their resources stay
// accounted until the node comes back or is known to have restarted. A gang with a pod there ends. Two false alarms are
// handled: a pause of this process (the pause is subtracted from every silence), and more than half of at least four
// nodes going silent together (they get another lease, because the network or the controller is the more likely cause).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "control/state/state.h"

namespace vrun::control {

class NodeTimeoutDuty {
 public:
  explicit NodeTimeoutDuty(const Settings& settings);
  int64_t interval_micros() const { return interval_; }
  // State thread, inside a transaction. Call about once per interval.
  Status Run(State& state);

 private:
  const int64_t lease_;
  const int64_t interval_;
  int64_t last_run_ = 0;
  bool holding_ = false;  // so many nodes are silent that they get another lease
};

}  // namespace vrun::control
