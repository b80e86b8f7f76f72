// SPDX-License-Identifier: Apache-2.0
// Maintenance windows: when which nodes are taken out of service, announced ahead. Before one begins nothing is started
// there that would run into it, except what may be told to leave; shortly before, nothing at all; then the nodes are
// closed until it is over.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sched/model/model.h"

namespace vrun::sched::core {

class Windows {
 public:
  bool empty() const { return by_name_.empty(); }
  // New, or instead of the one of this name.
  void Set(const Maintenance& window) { by_name_[window.name] = window; }
  void End(const std::string& name) { by_name_.erase(name); }
  // Nodes of all windows, those that are over included; each once.
  std::vector<std::string> Nodes() const;
  // Forgets those that are over.
  void Expire(Micros now);

  struct State {
    Micros begins = kNever;  // the next window, or the one that is on
    Micros ends = kNever;    // of the same
    bool closed = false;
  };
  // `lead`: so long before a window begins its nodes are closed.
  State At(const std::string& node, Micros now, Micros lead) const;
  // When something changes next; kNever.
  Micros Next(Micros now, Micros lead) const;

 private:
  std::map<std::string, Maintenance> by_name_;
};

}  // namespace vrun::sched::core
