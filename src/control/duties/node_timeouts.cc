// SPDX-License-Identifier: Apache-2.0
#include "control/duties/node_timeouts.h"

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"

namespace vrun::control {

NodeTimeoutDuty::NodeTimeoutDuty(const Settings& settings)
    : lease_(settings.lease_micros), interval_(std::clamp<int64_t>(settings.lease_micros / 10, 10'000, 2'000'000)) {}

Status NodeTimeoutDuty::Run(State& state) {
  const int64_t now = state.clock().Monotonic();
  if (last_run_ != 0 && now - last_run_ > 3 * interval_) {
    // This process was paused and could not receive messages.
    for (auto& [name, node] : state.nodes()) node.last_heard = std::min(now, node.last_heard + (now - last_run_));
  }
  last_run_ = now;

  size_t believed = 0;
  std::vector<std::string> silent;
  std::vector<std::string> silent_for_long;
  for (const auto& [name, node] : state.nodes()) {
    if (node.row.lost) continue;
    ++believed;
    if (now - node.last_heard > lease_) silent.push_back(name);
    if (now - node.last_heard > 2 * lease_) silent_for_long.push_back(name);
  }
  const bool too_many = believed >= 4 && silent.size() * 2 > believed && silent_for_long.size() < silent.size();
  if (too_many && !holding_) {
    LogWarning("{} of {} nodes are silent: they get another lease before they are called lost", silent.size(),
               believed);
  }
  holding_ = too_many;
  if (too_many) silent = silent_for_long;
  for (const std::string& name : silent) {
    const std::string reason = "node " + Escape(name) + " is lost: no message for " +
                               std::to_string((now - state.nodes().at(name).last_heard) / 1'000'000) + " s";
    LogWarning("{}", reason);
    VRUN_TRY(state.LoseNode(name, reason));
  }
  return state.HeedWaiting();
}

}  // namespace vrun::control
