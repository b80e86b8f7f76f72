// SPDX-License-Identifier: Apache-2.0
// The duty of calling silent nodes lost.
//
// A node that has said nothing for a lease is lost: its jobs become LOST, their resources stay accounted until it comes
// back or is known to have been restarted. Two things that look like lost nodes are not believed at once: a pause of
// this process itself (then every silence is shortened by it), and more than half of at least four nodes falling silent
// together (then they are given another lease: it is more likely the network, or us).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "control/state/state.h"

namespace vrun::control {

class LeaseDuty {
 public:
  explicit LeaseDuty(const Settings& settings);
  int64_t interval_micros() const { return interval_; }
  // State thread, inside a transaction, about every interval.
  Status Run(State& state);

 private:
  const int64_t lease_;
  const int64_t interval_;
  int64_t last_run_ = 0;
  bool holding_ = false;  // more are silent than is believed
};

}  // namespace vrun::control
