// SPDX-License-Identifier: Apache-2.0
// What is done about what nodes say of their GPUs: a GPU with a problem gets no more jobs, and a node that asks for it
// is drained, until it withdraws that.
//
// A circuit breaker: a wrong diagnosis on all nodes at once (a new driver, a library that reads nonsense) must not
// empty a pool. So only a part of a pool's nodes is taken out in a window of time. What more is said is told to the
// operator and not acted on. It is judged again when the node says it again, as at each registration. A GPU counts as
// its part of the node. What a node has when it joins for the first time takes nothing out of service and always
// counts.
#pragma once

#include <cstdint>
#include <string>

#include "proto/journal.pb.h"

namespace vrun::control {

struct HealthLimits {
  int32_t percent = 10;  // of a pool's nodes, and one node at least
  int64_t window_micros = 600'000'000;
};

// What a node says now.
struct HealthWord {
  std::string drain;      // "": it can get jobs
  uint32_t bad_gpus = 0;  // mask
  std::string problem;    // of the first of these GPUs, for people
  int32_t gpus = 0;       // of the node
};

// Thousandths of nodes that may still be taken out of a pool.
int64_t RoomToDrain(const HealthLimits& limits, int64_t nodes, int64_t taken_milli);
// Thousandths of the node that were taken out after `since`.
int64_t TakenSince(const v1::NodeHealth& health, int64_t since);

// The node's health after it said this. `room`: RoomToDrain of its pool. `fresh`: it joins for the first time.
v1::NodeHealth Judge(v1::NodeHealth health, const HealthWord& word, const HealthLimits& limits, int64_t room,
                     int64_t now, bool fresh);

}  // namespace vrun::control
