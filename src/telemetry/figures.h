// SPDX-License-Identifier: Apache-2.0
// What became of this process's spans, for Prometheus. The same names on the pages of controller, nodes and homes.
#pragma once

#include "http/metrics_page.h"

namespace vrun::telemetry {

// Any thread; `page`: the caller's.
void AddFigures(http::MetricsPage* page);

}  // namespace vrun::telemetry
