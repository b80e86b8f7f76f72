// SPDX-License-Identifier: Apache-2.0
#include "node/source/link_meter.h"

#include <algorithm>

namespace vrun::node {

void LinkMeter::Arrived(int64_t now, uint64_t bytes) {
  if (begin_ < 0) {  // the start of the first one is unknown
    begin_ = period_ = now;
    return;
  }
  bytes_ += bytes;
  if (now - begin_ < kWindowMicros) return;
  Close({bytes_, now - begin_}, now);
  begin_ = now;
  bytes_ = 0;
}

void LinkMeter::Close(const Window& window, int64_t now) {
  if (now - period_ > kForgetMicros) {
    best_before_ = now - period_ > 2 * kForgetMicros ? kLeastRate : best_;
    best_ = kLeastRate;
    period_ = now;
  }
  // A burst right after a pause of this process arrived during the pause.
  const Window both{window.bytes + before_.bytes, window.micros + before_.micros};
  best_ = std::max(best_, std::min(RateOf(window), RateOf(both)));
  const auto needed = static_cast<int64_t>(static_cast<double>(window.bytes) / std::max(best_, best_before_));
  const int64_t busy = std::min(window.micros, needed);
  busy_micros_ += busy + std::min(needed - busy, idle_before_);
  before_ = window;
  idle_before_ = window.micros - busy;
}

}  // namespace vrun::node
