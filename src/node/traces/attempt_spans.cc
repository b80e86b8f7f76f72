// SPDX-License-Identifier: Apache-2.0
#include "node/traces/attempt_spans.h"

#include <utility>

#include "base/clock.h"

namespace vrun::node {
namespace {

using telemetry::JobTrace;
using telemetry::Span;

// Of the command itself: not what somebody wanted, and not what another pod did.
bool HasFailed(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() != 0;
    case v1::ExitRecord::CANCELLED_BY_USER:
    case v1::ExitRecord::PREEMPTED_BY_JOB:
    case v1::ExitRecord::GANG_ENDED:
    case v1::ExitRecord::LEFT_GANG: return false;
    default: return true;
  }
}

const char* KindOf(const v1::ExitRecord& record) {
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return "exited";
    case v1::ExitRecord::SIGNALED: return "signaled";
    case v1::ExitRecord::NOT_FOUND: return "command not found";
    case v1::ExitRecord::NOT_EXECUTABLE: return "not executable";
    case v1::ExitRecord::START_FAILED: return "not started";
    case v1::ExitRecord::TIME_LIMIT: return "time limit";
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return "out of memory";
    case v1::ExitRecord::CANCELLED_BY_USER: return "cancelled";
    case v1::ExitRecord::PREEMPTED_BY_JOB: return "preempted";
    case v1::ExitRecord::GANG_ENDED: return "gang ended";
    case v1::ExitRecord::LEFT_GANG: return "left gang";
    default: return "unknown";
  }
}

void SetFailure(const v1::ExitRecord& record, Span* span) {
  span->failed = HasFailed(record);
  if (!span->failed) return;
  span->failure = record.reason();
  if (span->failure.empty()) {
    span->failure =
        record.kind() == v1::ExitRecord::EXITED ? "exit " + std::to_string(record.exit_code()) : KindOf(record);
  }
}

}  // namespace

AttemptSpans::AttemptSpans(const v1::StartAttempt& order, bool adopted) {
  if (!telemetry::Enabled()) return;
  const std::string caller = telemetry::TraceParentIn(order.spec().command().environment());
  if (!caller.empty()) caller_ = std::string(telemetry::kTraceParent) + "=" + caller;
  trace_.emplace(order.placement().job(), caller);
  attempt_ = order.placement().attempt();
  pod_ = order.placement().pod();
  if (adopted) return;
  began_us_ = step_us_ = WallMicros();
  step_ = kAttach;
}

Span AttemptSpans::Make(std::string_view name, int64_t start_us, int64_t end_us) const {
  Span span = trace_->Make(name, start_us, end_us, attempt_, pod_);
  span.parent = trace_->Name(JobTrace::kAttempt, attempt_);
  span.attributes.emplace_back("vrun.pod", int64_t{pod_});
  return span;
}

void AttemptSpans::EndStep(int64_t now) {
  if (step_ == nullptr || !trace_->sampled()) return;
  Span span = Make(std::exchange(step_, nullptr), step_us_, now);
  span.parent = trace_->Name(JobTrace::kPrepare, attempt_, pod_);
  telemetry::Emit(std::move(span));
}

void AttemptSpans::Step(const char* step) {
  if (!trace_ || began_us_ == 0) return;
  const int64_t now = WallMicros();
  EndStep(now);
  step_ = step;
  step_us_ = now;
}

void AttemptSpans::GpusBegin() { gpus_us_ = trace_ ? WallMicros() : 0; }

void AttemptSpans::GpusEnd() {
  if (gpus_us_ == 0 || began_us_ == 0 || !trace_->sampled()) return;
  Span span = Make(kGpus, std::exchange(gpus_us_, 0), WallMicros());
  span.parent = trace_->Name(JobTrace::kPrepare, attempt_, pod_);
  telemetry::Emit(std::move(span));
}

void AttemptSpans::Runs() {
  if (!trace_ || began_us_ == 0) return;
  const int64_t now = WallMicros();
  EndStep(now);
  const int64_t began = std::exchange(began_us_, 0);
  if (trace_->sampled()) telemetry::Emit(Make(JobTrace::kPrepare, began, now));
}

void AttemptSpans::Ended(const v1::ExitRecord& record) {
  if (!trace_ || !trace_->sampled()) return;
  const bool ran = record.started_us() > 0;
  if (began_us_ != 0) {
    const int64_t now = ran ? record.started_us() : WallMicros();
    EndStep(now);
    Span prepare = Make(JobTrace::kPrepare, std::exchange(began_us_, 0), now);
    if (!ran) SetFailure(record, &prepare);
    telemetry::Emit(std::move(prepare));
  }
  if (!ran) return;
  Span run = Make(JobTrace::kRun, record.started_us(), record.ended_us());
  run.attributes.emplace_back("vrun.exit.kind", std::string(KindOf(record)));
  if (record.kind() == v1::ExitRecord::EXITED) {
    run.attributes.emplace_back("process.exit.code", int64_t{record.exit_code()});
  }
  if (record.signal() != 0) run.attributes.emplace_back("vrun.exit.signal", int64_t{record.signal()});
  if (!record.reason().empty()) run.attributes.emplace_back("vrun.reason", record.reason());
  run.attributes.emplace_back("vrun.cpu.seconds", static_cast<double>(record.cpu_us()) / 1e6);
  run.attributes.emplace_back("vrun.memory.peak_bytes", static_cast<int64_t>(record.peak_memory_bytes()));
  SetFailure(record, &run);
  telemetry::Emit(std::move(run));
}

void AttemptSpans::PutInto(v1::Command* command) const {
  if (!trace_) return;
  const std::string prefix = std::string(telemetry::kTraceParent) + "=";
  auto* environment = command->mutable_environment();
  for (int i = environment->size() - 1; i >= 0; --i) {
    if (environment->Get(i).starts_with(prefix)) environment->DeleteSubrange(i, 1);
  }
  environment->Add(prefix + trace_->ForProgram(trace_->Name(JobTrace::kRun, attempt_, pod_)));
}

}  // namespace vrun::node
