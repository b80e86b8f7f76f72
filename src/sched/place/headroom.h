// SPDX-License-Identifier: Apache-2.0
// How much room to leave idle for inference: its growth of demand within one window (the time in which room can be made
// for it) in all but one of a hundred windows of the last day. All GPU types together.
#pragma once

#include <cstddef>
#include <vector>

#include "sched/model/policy.h"

namespace vrun::sched::core {

class Headroom {
 public:
  explicit Headroom(const Policy& policy) : policy_(policy) {}

  // The demand of inference, running or waiting, changed by this many thousandths of GPUs.
  void Change(int64_t milli, Micros now);
  // Closes the windows that are over.
  void Advance(Micros now);
  // Thousandths of GPUs, in whole GPUs, as of the last window; 0 until inference was seen. At most
  // Policy::headroom_most.
  int64_t Target(int64_t capacity_milli) const;

 private:
  static constexpr size_t kWindows = 1440;
  void EndWindow();

  const Policy& policy_;
  bool seen_ = false;
  int64_t demand_ = 0;
  int64_t at_start_ = 0;  // at the begin of the present window
  int64_t peak_ = 0;
  Micros started_ = 0;
  std::vector<int64_t> growth_;  // ring buffer
  size_t next_ = 0;
  int64_t target_ = 0;
};

}  // namespace vrun::sched::core
