// SPDX-License-Identifier: Apache-2.0
// Maintenance windows: which nodes go out of service and when, announced in advance. Before a window, nothing starts
// there that would run into it, except jobs that may be told to leave. Shortly before it nothing starts at all. Then
// the nodes are closed until it is over.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sched/model/model.h"

namespace vrun::sched::core {

class Windows {
 public:
  bool empty() const { return by_name_.empty(); }
  // Adds the window or replaces the one with this name.
  void Set(const Maintenance& window) { by_name_[window.name] = window; }
  void End(const std::string& name) { by_name_.erase(name); }
  // Nodes of all windows, including past ones, each once.
  std::vector<std::string> Nodes() const;
  // Removes past windows.
  void Expire(Micros now);

  struct State {
    Micros begins = kNever;  // of the next or current window
    Micros ends = kNever;    // of the same
    bool closed = false;
  };
  // `lead`: how long before a window its nodes are closed.
  State At(const std::string& node, Micros now, Micros lead) const;
  // Time of the next change; kNever.
  Micros Next(Micros now, Micros lead) const;

 private:
  std::map<std::string, Maintenance> by_name_;
};

}  // namespace vrun::sched::core
