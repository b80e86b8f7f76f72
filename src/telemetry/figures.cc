// SPDX-License-Identifier: Apache-2.0
#include "telemetry/figures.h"

#include "telemetry/telemetry.h"

namespace vrun::telemetry {

void AddFigures(http::MetricsPage* page) {
  const Counts counts = Counted();
  page->Only("vrun_trace_spans_sent_total", "counter", "Spans that the collector of traces took.",
             static_cast<double>(counts.sent));
  page->Only("vrun_trace_spans_dropped_total", "counter",
             "Spans that were dropped: the collector refused them, was away, or was too slow.",
             static_cast<double>(counts.dropped));
}

}  // namespace vrun::telemetry
