// SPDX-License-Identifier: Apache-2.0
// The controller's own history as a trace, read from the store in steps, so that the state thread stays free for
// others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/ops/ops.h"
#include "control/state/state.h"
#include "history/cluster.h"
#include "history/trace.h"

namespace vrun::control {

// State thread. Changes nothing of the state.
class Collect {
 public:
  // `peer`: who asks; what he may not see is left out.
  Collect(const rpc::Peer& peer, const history::Span& span) : peer_(peer), span_(span), trace_(span) {}

  // The cluster and the teams as they are, and where in the history to begin. Once, before Step.
  Status Begin(State& state);
  // Reads some jobs. False: that was all.
  Result<bool> Step(State& state);

  const std::vector<history::Part>& parts() const { return parts_; }
  const std::vector<history::TeamQuota>& teams() const { return teams_; }
  const history::Trace& trace() const { return trace_; }

 private:
  Result<uint64_t> FirstOf(State& state) const;

  const rpc::Peer peer_;
  const history::Span span_;
  history::Trace trace_;
  std::vector<history::Part> parts_;
  std::vector<history::TeamQuota> teams_;
  uint64_t after_ = 0;  // the last job that was read
};

}  // namespace vrun::control
