// SPDX-License-Identifier: Apache-2.0
// The controller's figures as Prometheus reads them (text format 0.0.4). Names begin with vrun_, units are base units.
// Users are no labels: there are too many of them.
#pragma once

#include <string>

#include "control/api/counters.h"
#include "control/state/state.h"

namespace vrun::control {

// State thread. Teams have labels as far as `viewer` sees them (State::ShowsTeam).
std::string MetricsText(State& state, const Counters& counters, const std::string& viewer);

}  // namespace vrun::control
