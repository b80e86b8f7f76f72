// SPDX-License-Identifier: Apache-2.0
// Traces of this process's jobs, sent to a collector of OpenTelemetry (docs/decisions/0061-traces.md). Like the log,
// there is one per process.
//
// Controller, nodes and homes tell each other nothing about traces: each derives the names of a job's trace and spans
// from what all of them know, which are the cluster's authority, the job's id, and the TRACEPARENT of the job's
// environment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "base/result.h"
#include "telemetry/settings.h"
#include "telemetry/span.h"

namespace vrun::telemetry {

class Exporter;

// While one exists, spans of this process are sent. At most one at a time.
class Export {
 public:
  // `service`: "vrun-node"; `instance`: which of them. `cluster`: the PEM of its authority; "": UseCluster comes later.
  // Null: no collector is configured. kInvalid, kDenied: a setting is wrong.
  static Result<std::unique_ptr<Export>> Begin(const Options& options, const std::string& service,
                                               const std::string& instance, std::string_view cluster);
  // The same; null also if a setting is wrong, which the log is told: work does not depend on it.
  static std::unique_ptr<Export> TryBegin(const Options& options, const std::string& service,
                                          const std::string& instance, std::string_view cluster);
  // Sends what is queued, for at most a second.
  ~Export();
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;

 private:
  explicit Export(std::unique_ptr<Exporter> exporter);
  const std::unique_ptr<Exporter> exporter_;
};

// Whether spans are sent. Any thread; one load.
bool Enabled();
// The cluster that jobs belong to from now on. Any thread.
void UseCluster(std::string_view authority_pem);
// Drops it when too many wait, or nothing is sent. Any thread.
void Emit(Span span);
// Spans since the start of the process's Export; 0 without one. Any thread.
struct Counts {
  uint64_t sent = 0;     // the collector took them
  uint64_t dropped = 0;  // it never will
};
Counts Counted();

// The trace of one job.
class JobTrace {
 public:
  // `trace_parent`: TRACEPARENT of its environment; "" or not a good one: the job begins a trace of its own.
  JobTrace(uint64_t job, std::string_view trace_parent);

  // Whether its spans are to be sent, if any are.
  bool sampled() const { return sampled_; }
  const TraceId& trace() const { return trace_; }
  // The same in every program.
  SpanId Name(std::string_view span, uint32_t attempt = 0, uint32_t pod = 0) const;
  SpanId root() const { return Name(kJob); }

  // A span with its names and vrun.job.id filled in, below that of the job.
  Span Make(std::string_view span, int64_t start_us, int64_t end_us, uint32_t attempt = 0, uint32_t pod = 0) const;
  // The job's own span.
  Span MakeRoot(int64_t start_us, int64_t end_us) const;
  // TRACEPARENT for a program within that span.
  std::string ForProgram(const SpanId& span) const { return FormatTraceParent({trace_, span, sampled_}); }

  static constexpr std::string_view kJob = "job";
  static constexpr std::string_view kAttempt = "attempt";
  static constexpr std::string_view kPrepare = "prepare";
  static constexpr std::string_view kRun = "run";

 private:
  uint64_t job_;
  Digest cluster_;
  TraceId trace_;
  SpanId caller_;  // zero: none
  bool sampled_ = false;
};

}  // namespace vrun::telemetry
