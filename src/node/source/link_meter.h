// SPDX-License-Identifier: Apache-2.0
// Estimates how long a link was busy, from arrival times and message sizes: the time that the received bytes take at
// the best rate recently seen.
//
// Between 10 Mbit/s and 10 Gbit/s a full link reads near 100 %, a link idle half of the time about 50 %. Limitation: a
// link that was never full counts as being only as fast as it was used.
#pragma once

#include <cstdint>

namespace vrun::node {

// Pure. One thread at a time.
class LinkMeter {
 public:
  void Arrived(int64_t now_micros, uint64_t bytes);
  // Up to the end of the last window; never decreases.
  int64_t busy_micros() const { return busy_micros_; }

 private:
  // A message is only seen when its last byte has arrived, and messages that waited for this process arrive all at
  // once. So rates are meaningful only over a window.
  static constexpr int64_t kWindowMicros = 50'000;
  static constexpr int64_t kForgetMicros = 60'000'000;  // home may have moved to another network
  static constexpr double kLeastRate = 0.125;           // 1 Mbit/s: so that pings alone do not fill a link

  struct Window {
    uint64_t bytes = 0;
    int64_t micros = 0;
  };
  static double RateOf(const Window& window) {
    return static_cast<double>(window.bytes) / static_cast<double>(window.micros);
  }
  void Close(const Window& window, int64_t now_micros);

  int64_t begin_ = -1;  // start of the window: arrival of the last message of the previous window
  uint64_t bytes_ = 0;  // received in the window
  Window before_;
  int64_t idle_before_ = 0;                              // idle time in the window
  double best_ = kLeastRate, best_before_ = kLeastRate;  // bytes per microsecond, in this period and the previous one
  int64_t period_ = 0;                                   // start of the period
  int64_t busy_micros_ = 0;
};

}  // namespace vrun::node
