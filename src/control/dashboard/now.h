// SPDX-License-Identifier: Apache-2.0
// The cluster at a glance, as its dashboard shows it.
#pragma once

#include <string>

#include "control/dashboard/history.h"
#include "control/dashboard/recent.h"
#include "control/state/state.h"
#include "proto/dashboard.pb.h"

namespace vrun::control {

// State thread, both. `viewer`: the name in a home's certificate; what it may not see of others' jobs is left out.
v1::ClusterNow NowOf(State& state, const std::string& viewer, const Recent& recent, const History& history);
v1::TeamUseList TeamUseOf(State& state, const std::string& viewer, const Recent& recent);

}  // namespace vrun::control
