// SPDX-License-Identifier: Apache-2.0
#include "sched/model/windows.h"

#include <algorithm>

namespace vrun::sched::core {

std::vector<std::string> Windows::Nodes() const {
  std::vector<std::string> nodes;
  for (const auto& [name, w] : by_name_) nodes.insert(nodes.end(), w.nodes.begin(), w.nodes.end());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

void Windows::Expire(Micros now) {
  std::erase_if(by_name_, [&](const auto& entry) { return entry.second.until <= now; });
}

Windows::State Windows::At(const std::string& node, Micros now, Micros lead) const {
  State state;
  for (const auto& [name, w] : by_name_) {
    if (w.until <= now || std::find(w.nodes.begin(), w.nodes.end(), node) == w.nodes.end()) continue;
    if (w.from >= state.begins) continue;
    state = {w.from, w.until, w.from - lead <= now};
  }
  return state;
}

Micros Windows::Next(Micros now, Micros lead) const {
  Micros next = kNever;
  for (const auto& [name, w] : by_name_) {
    for (Micros t : {w.from - lead, w.from, w.until}) {
      if (t > now) next = std::min(next, t);
    }
  }
  return next;
}

}  // namespace vrun::sched::core
