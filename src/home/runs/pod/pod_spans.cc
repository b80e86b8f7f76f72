// SPDX-License-Identifier: Apache-2.0
#include "home/runs/pod/pod_spans.h"

#include <utility>

#include "base/clock.h"

namespace vrun::home {
namespace {

using telemetry::JobTrace;
using telemetry::Span;

Span SpanOf(const JobTrace& trace, const char* name, int64_t from, const v1::Placement& of) {
  Span span = trace.Make(name, from, WallMicros(), of.attempt(), of.pod());
  span.attributes.emplace_back("vrun.pod", int64_t{of.pod()});
  span.attributes.emplace_back("vrun.node", of.node());
  return span;
}

}  // namespace

PodSpans::PodSpans(uint64_t job, const std::optional<std::string>& trace_parent) {
  if (!telemetry::Enabled() || !trace_parent) return;
  const JobTrace trace(job, *trace_parent);
  if (!trace.sampled()) return;
  trace_ = trace;
  began_us_ = WallMicros();
}

void PodSpans::Output(const v1::Placement& from) {
  if (!trace_ || std::exchange(has_output_, true)) return;
  telemetry::Emit(SpanOf(*trace_, "first output", began_us_, from));
}

void PodSpans::Exited() {
  if (trace_ && exited_us_ == 0) exited_us_ = WallMicros();
}

void PodSpans::AllHome(const v1::Placement& from, uint64_t failed, uint64_t conflicts) {
  if (exited_us_ == 0) return;
  Span span = SpanOf(*trace_, "send home", std::exchange(exited_us_, 0), from);
  span.parent = trace_->Name(JobTrace::kAttempt, from.attempt());
  if (conflicts > 0) span.attributes.emplace_back("vrun.writes.conflicts", static_cast<int64_t>(conflicts));
  span.failed = failed > 0;
  if (span.failed) span.failure = std::to_string(failed) + " writes could not be applied";
  telemetry::Emit(std::move(span));
}

}  // namespace vrun::home
