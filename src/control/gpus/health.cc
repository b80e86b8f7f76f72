// SPDX-License-Identifier: Apache-2.0
#include "control/gpus/health.h"

#include <algorithm>
#include <bit>

namespace vrun::control {
namespace {

constexpr int64_t kWholeNode = 1000;

void Take(int64_t milli, int64_t now, v1::NodeHealth* health) {
  auto* taken = health->add_taken();
  taken->set_at_us(now);
  taken->set_milli(static_cast<uint32_t>(milli));
}

}  // namespace

int64_t RoomToDrain(const HealthLimits& limits, int64_t nodes, int64_t taken_milli) {
  return std::max<int64_t>(std::max(kWholeNode, nodes * kWholeNode * limits.percent / 100) - taken_milli, 0);
}

int64_t TakenSince(const v1::NodeHealth& health, int64_t since) {
  int64_t sum = 0;
  for (const auto& t : health.taken()) sum += t.at_us() > since ? t.milli() : 0;
  return sum;
}

v1::NodeHealth Judge(v1::NodeHealth health, const HealthWord& word, const HealthLimits& limits, int64_t room,
                     int64_t now, bool fresh) {
  auto* taken = health.mutable_taken();
  taken->erase(std::remove_if(taken->begin(), taken->end(),
                              [&](const auto& t) { return t.at_us() <= now - limits.window_micros; }),
               taken->end());
  health.clear_ignored();
  if (word.drain != health.overruled()) health.clear_overruled();
  const bool drains = !word.drain.empty() && word.drain != health.overruled();
  // What is withdrawn comes back at once.
  health.set_bad_gpus(health.bad_gpus() & word.bad_gpus);
  if (!drains) health.clear_drain();
  const int64_t gpus = std::max(word.gpus, 1);
  const auto out = [gpus](uint32_t bad) { return std::popcount(bad) * kWholeNode / gpus; };
  // What was taken of this node in the window is paid for, even if it came back meanwhile.
  const int64_t paid = TakenSince(health, now - limits.window_micros);
  const auto cost_of = [&](int64_t taken) {
    return fresh ? 0 : std::max<int64_t>(taken - std::max(paid, out(health.bad_gpus())), 0);
  };
  const auto ignore = [&](const std::string& what) {
    health.set_ignored(what + ": not acted on, because " + std::to_string(limits.percent) +
                       " % of the pool's nodes were taken out in the last " +
                       std::to_string(limits.window_micros / 60'000'000) + " minutes");
  };
  if (drains && health.drain().empty()) {
    const int64_t cost = cost_of(kWholeNode);
    if (cost > room) {
      ignore(word.drain);
    } else {
      if (cost > 0) Take(cost, now, &health);
      room -= cost;
      health.set_drain(word.drain);
    }
  } else if (drains) {
    health.set_drain(word.drain);  // in other words
  }
  const uint32_t more = word.bad_gpus & ~health.bad_gpus();
  // A node that drains gives no more away.
  const int64_t cost = health.drain().empty() ? cost_of(out(health.bad_gpus() | more)) : 0;
  if (more == 0) return health;
  if (cost > room) {
    if (health.ignored().empty()) ignore(word.problem);
    return health;
  }
  if (cost > 0) Take(cost, now, &health);
  health.set_bad_gpus(health.bad_gpus() | more);
  return health;
}

}  // namespace vrun::control
