// SPDX-License-Identifier: Apache-2.0
#include "home/pack/compression_policy.h"

#include <algorithm>

namespace vrun::home {
namespace {

constexpr double kNew = 0.3;  // weight of a new measurement
constexpr double kFastest = 5e9;
constexpr double kBetter = 0.85;  // of the earlier cost: smaller gains change nothing

double Mix(double before, double now) { return before == 0 ? now : before + kNew * (now - before); }

double CostOf(double link, const CompressionPolicy::Cost& c) { return std::max(1 / c.speed, c.ratio / link); }

}  // namespace

int CompressionPolicy::Choose(double link, const Cost& one, const Cost& three, int before) {
  if (link <= 0) return 1;
  const double costs[] = {1 / link, CostOf(link, one), CostOf(link, three)};
  static constexpr int kLevels[] = {0, 1, 3};
  size_t best = 0, current = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (costs[i] < costs[best]) best = i;
    if (kLevels[i] == before) current = i;
  }
  return costs[best] < costs[current] * kBetter ? kLevels[best] : before;
}

int CompressionPolicy::level() const {
  MutexLock lock(mutex_);
  return level_;
}

double CompressionPolicy::link() const {
  MutexLock lock(mutex_);
  return link_;
}

void CompressionPolicy::Sent(int64_t now, uint64_t sent, uint64_t queued, bool more_waits) {
  MutexLock lock(mutex_);
  if (last_ != 0 && now >= last_) {
    const int64_t took = now - last_;
    const uint64_t gone = (sent - last_sent_) + last_queued_ - std::min(queued, (sent - last_sent_) + last_queued_);
    if (last_queued_ >= kBacklogBytes && queued >= kBacklogBytes) {
      busy_micros_ += took;
      busy_bytes_ += gone;
    } else if (last_waited_ && queued < kBacklogBytes) {
      starved_micros_ += took;
      starved_bytes_ += gone;
    } else {
      // A pause without requests: it says nothing, nor does the half window before it.
      busy_micros_ = starved_micros_ = 0;
      busy_bytes_ = starved_bytes_ = 0;
    }
    const bool starved = starved_micros_ > busy_micros_;
    if (busy_micros_ + starved_micros_ >= kWindowMicros && (!starved || starved_bytes_ >= kTellingBytes)) {
      if (!starved) {
        link_ = Mix(link_, static_cast<double>(busy_bytes_) * 1e6 / static_cast<double>(busy_micros_));
      } else {
        // The link sends all that we produce: it is faster, by an unknown amount. Each window raises the estimate,
        // until uncompressed sending is tried; a backlog then shows the true speed.
        const double made = static_cast<double>(starved_bytes_) * 1e6 / static_cast<double>(starved_micros_);
        link_ = std::min(std::max(1.5 * link_, 2 * made), kFastest);
      }
      level_ = Choose(link_, one_, three_, level_);
      busy_micros_ = starved_micros_ = 0;
      busy_bytes_ = starved_bytes_ = 0;
    }
  }
  last_ = now;
  last_sent_ = sent;
  last_queued_ = queued;
  last_waited_ = more_waits;
}

void CompressionPolicy::Compressed(int level, uint64_t raw, uint64_t packed, int64_t micros) {
  if (raw == 0 || micros <= 0) return;
  MutexLock lock(mutex_);
  Cost& cost = level >= 3 ? three_ : one_;
  cost.speed += 0.05 * (static_cast<double>(raw) * 1e6 / static_cast<double>(micros) - cost.speed);
  const double ratio = std::min(1.0, static_cast<double>(packed) / static_cast<double>(raw));
  cost.ratio += 0.05 * (ratio - cost.ratio);
  // The level that is not in use is estimated from the other: both change together with the machine and the content.
  if (level < 3) {
    three_ = {one_.speed * 0.4, one_.ratio * 0.92};
  } else {
    one_ = {three_.speed / 0.4, std::min(1.0, three_.ratio / 0.92)};
  }
}

bool Shrinks::Try() {
  if (skip_ == 0) return true;
  --skip_;
  return false;
}

void Shrinks::Tried(bool smaller) {
  if (smaller) {
    failures_ = 0;
    return;
  }
  skip_ = std::min(kMostSkipped - 1, (4u << std::min(failures_, 4u)) - 1);
  ++failures_;
}

}  // namespace vrun::home
