// SPDX-License-Identifier: Apache-2.0
// What happened lately, for people: preemptions, and how long jobs waited for their first start. In memory only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "control/state/state.h"

namespace vrun::control {

// State thread.
class Recent {
 public:
  struct Preempted {
    int64_t at_us = 0;  // wall clock
    uint64_t job = 0;
    uint32_t attempt = 0;
    std::string reason;  // for whom
  };

  void Begin(int64_t now_us) {
    if (since_us_ == 0) since_us_ = now_us;
  }
  void NotePreemption(State& state, uint64_t job, uint32_t attempt);
  void NoteStart(const std::string& team, int64_t waited_us);

  int64_t since_us() const { return since_us_; }
  const std::deque<Preempted>& preempted() const { return preempted_; }               // newest first
  const std::map<std::string, std::deque<int64_t>>& waits() const { return waits_; }  // by team, microseconds

 private:
  int64_t since_us_ = 0;
  std::deque<Preempted> preempted_;
  std::map<std::string, std::deque<int64_t>> waits_;
};

}  // namespace vrun::control
