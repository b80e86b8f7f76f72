// SPDX-License-Identifier: Apache-2.0
#include "sched/place/headroom.h"

#include <algorithm>

namespace vrun::sched::core {

void Headroom::Change(int64_t milli, Micros now) {
  if (!seen_) started_ = now;
  seen_ = true;
  Advance(now);
  demand_ += milli;
  peak_ = std::max(peak_, demand_);
}

void Headroom::Advance(Micros now) {
  if (!seen_ || policy_.headroom_window <= 0 || now - started_ < policy_.headroom_window) return;
  Micros windows = (now - started_) / policy_.headroom_window;
  started_ += windows * policy_.headroom_window;
  // After a long pause only the last day matters.
  for (windows = std::min<Micros>(windows, kWindows); windows > 0; --windows) EndWindow();
  std::vector<int64_t> sorted = growth_;
  const size_t rank =
      std::min(sorted.size() - 1, sorted.size() * static_cast<size_t>(policy_.headroom_quantile) / 1000);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(rank), sorted.end());
  target_ = sorted[rank];
}

void Headroom::EndWindow() {
  const int64_t growth = peak_ - at_start_;
  if (growth_.size() < kWindows) {
    growth_.push_back(growth);
  } else {
    growth_[next_] = growth;
    next_ = (next_ + 1) % kWindows;
  }
  at_start_ = peak_ = demand_;
}

int64_t Headroom::Target(int64_t capacity_milli) const {
  const int64_t target = std::min(target_, capacity_milli * policy_.headroom_most / 1000);
  return target - target % kMilli;
}

}  // namespace vrun::sched::core
