// SPDX-License-Identifier: Apache-2.0
// How long a link was busy, told from when messages of which sizes arrived: for as long as what came takes at the best
// rate that the link has shown lately.
//
// Between 10 Mbit/s and 10 Gbit/s a full link reads near 100 %, one that is idle half of the time about 50 %. What it
// cannot tell: a link that was never seen full counts as one that is as slow as it was used.
#pragma once

#include <cstdint>

namespace vrun::node {

// Pure; one thread at a time.
class LinkMeter {
 public:
  void Arrived(int64_t now_micros, uint64_t bytes);
  // Up to the end of the last window; grows only.
  int64_t busy_micros() const { return busy_micros_; }

 private:
  // A message comes whole, when its last byte has come, and what waited for this process comes at once: only over a
  // while do sizes and times tell a rate.
  static constexpr int64_t kWindowMicros = 50'000;
  static constexpr int64_t kForgetMicros = 60'000'000;  // home may have moved to another network
  static constexpr double kLeastRate = 0.125;           // 1 Mbit/s: signs of life alone fill no link

  struct Window {
    uint64_t bytes = 0;
    int64_t micros = 0;
  };
  static double RateOf(const Window& window) {
    return static_cast<double>(window.bytes) / static_cast<double>(window.micros);
  }
  void Close(const Window& window, int64_t now_micros);

  int64_t begin_ = -1;  // of the window: when the last message of the one before came
  uint64_t bytes_ = 0;  // that came in it
  Window before_;
  int64_t idle_before_ = 0;                              // of it
  double best_ = kLeastRate, best_before_ = kLeastRate;  // bytes a microsecond, in this period and the one before
  int64_t period_ = 0;                                   // when it began
  int64_t busy_micros_ = 0;
};

}  // namespace vrun::node
