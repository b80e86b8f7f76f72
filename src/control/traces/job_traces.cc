// SPDX-License-Identifier: Apache-2.0
#include "control/traces/job_traces.h"

#include <algorithm>

#include "jobs/ending.h"

namespace vrun::control {
namespace {

using telemetry::JobTrace;
using telemetry::Span;

constexpr size_t kMostNodes = 64;  // whose names a span has

std::string NameOfState(v1::JobState state) {
  std::string name = v1::JobState_Name(state);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return name;
}

// Somebody who cancels a job, or takes its room, wants that.
bool IsFailure(v1::JobState state) { return IsEnd(state) && state != v1::COMPLETED && state != v1::CANCELLED; }

void AddWhole(const char* name, int64_t value, Span* span) {
  if (value != 0) span->attributes.emplace_back(name, value);
}
void AddText(const char* name, const std::string& value, Span* span) {
  if (!value.empty()) span->attributes.emplace_back(name, value);
}

void SetEnd(v1::JobState state, const std::string& reason, Span* span) {
  span->attributes.emplace_back("vrun.state", NameOfState(state));
  AddText("vrun.reason", reason, span);
  span->failed = IsFailure(state);
  if (span->failed) span->failure = reason.empty() ? NameOfState(state) : reason;
}

// TRACEPARENT of its environment. nullopt: the environment is not known any more.
std::optional<JobTrace> TraceOf(State& state, const JobRow& job) {
  const Result<v1::SubmitRequest> request = state.RequestOf(job);
  if (!request) return std::nullopt;
  const JobTrace trace(job.id, telemetry::TraceParentIn(request->spec().command().environment()));
  if (!trace.sampled()) return std::nullopt;
  return trace;
}

}  // namespace

void JobTraces::Tell(Span span) const {
  if (take_) return take_(std::move(span));
  telemetry::Emit(std::move(span));
}

void JobTraces::Begin(const State& state) {
  known_.clear();
  if (!on()) return;
  for (const auto& [id, job] : state.jobs()) {
    Known& known = known_[id];
    known.submitted = true;
    known.placed = job.attempt;
    known.over = job.state == v1::PENDING || job.attempt == 0 ? job.attempt : job.attempt - 1;
    known.started = job.started_us != 0;
    known.stopping = job.stopping;
    known.stopping_us = job.stopping_us;
  }
}

void JobTraces::Note(State& state, const std::set<uint64_t>& jobs) {
  if (!on()) return;
  for (const uint64_t id : jobs) {
    const auto job = state.jobs().find(id);
    if (job != state.jobs().end()) {
      Follow(state, job->second, &known_[id]);
      continue;
    }
    // Told again about a job that has ended, or one that was refused at once.
    const auto known = known_.extract(id);
    if (known.empty() || !known.mapped().trace) continue;
    const Result<JobRow> ended = state.Find(id);
    if (!ended || !IsEnd(ended->state)) continue;
    TellAttempts(state, *ended, &known.mapped());
    TellEnd(state, *ended, known.mapped());
  }
}

void JobTraces::Follow(State& state, const JobRow& job, Known* known) const {
  // Not before, because that reads its record. When it is over, its environment is gone.
  if (!std::exchange(known->begun, true)) known->trace = TraceOf(state, job);
  if (!known->trace) return;
  // An element begins when its array lets it.
  if (!std::exchange(known->submitted, true) && job.array == 0) {
    Span submit = known->trace->Make("submit", job.submitted_us, state.clock().Wall());
    submit.kind = telemetry::SpanKind::kServer;
    AddWhole("vrun.spec.bytes", static_cast<int64_t>(job.spec_bytes), &submit);
    Tell(std::move(submit));
  }
  TellAttempts(state, job, known);
  if (job.state == v1::PENDING) {
    if (const auto event = state.EventOf(job.id, job.user)) known->waits = event->reason();
  }
  if (!job.stopping.empty()) {
    known->stopping = job.stopping;
    known->stopping_us = job.stopping_us;
  }
}

void JobTraces::TellAttempts(State& state, const JobRow& job, Known* known) const {
  // Attempts are read only if there is something to tell.
  const uint32_t over = job.state == v1::PENDING || IsEnd(job.state) ? job.attempt : job.attempt - (job.attempt > 0);
  const bool starts = job.started_us != 0 && !known->started;
  if (known->placed >= job.attempt && known->over >= over && !starts) return;
  const Result<std::vector<AttemptRow>> attempts = state.store().Attempts(job.id);
  if (!attempts) return;
  const JobTrace& trace = *known->trace;
  int64_t waits_since = job.submitted_us;
  for (const AttemptRow& a : *attempts) {
    const auto below = [&](const char* name, int64_t from, int64_t until) {
      Span span = trace.Make(name, from, until, a.attempt);
      span.parent = trace.Name(JobTrace::kAttempt, a.attempt);
      return span;
    };
    if (a.attempt > known->placed) {
      Span queue = trace.Make("queue", waits_since, a.placed_us, a.attempt);
      AddText("vrun.pool", job.pool, &queue);
      AddText("vrun.team", job.scheduling.team(), &queue);
      AddText("vrun.queue.reason", known->waits, &queue);
      Tell(std::move(queue));
      Tell(below("place", a.placed_us, std::max(state.clock().Wall(), a.placed_us)));
      known->placed = a.attempt;
      known->started = false;
      known->waits.clear();
    }
    if (a.attempt == job.attempt && job.started_us != 0 && !std::exchange(known->started, true)) {
      Tell(below("start", a.placed_us, job.started_us));
    }
    if (a.ended_us != 0) waits_since = a.ended_us;
    if (a.attempt <= known->over || a.ended_us == 0) continue;
    Span span = trace.Make(JobTrace::kAttempt, a.placed_us, a.ended_us, a.attempt);
    std::vector<std::string> nodes;
    for (const PodRow& pod : a.pods) {
      const bool seen = std::find(nodes.begin(), nodes.end(), pod.node) != nodes.end();
      if (!seen && nodes.size() < kMostNodes) nodes.push_back(pod.node);
    }
    AddWhole("vrun.pods", static_cast<int64_t>(a.pods.size()), &span);
    span.attributes.emplace_back("vrun.nodes", std::move(nodes));
    SetEnd(a.state, a.reason, &span);
    if (!known->stopping.empty()) {
      span.events.push_back({known->stopping_us, "preempted", {{"vrun.reason", std::exchange(known->stopping, "")}}});
    }
    Tell(std::move(span));
    known->over = a.attempt;
  }
}

void JobTraces::TellEnd(State& state, const JobRow& job, const Known& known) const {
  Span span = known.trace->MakeRoot(job.submitted_us, job.ended_us);
  AddText("vrun.job.name", job.name, &span);
  AddText("user.name", job.user, &span);
  AddText("vrun.pool", job.pool, &span);
  AddText("vrun.team", job.scheduling.team(), &span);
  AddText("vrun.project", job.scheduling.project(), &span);
  AddText("vrun.gpu.type", job.needs.gpu_type, &span);
  AddWhole("vrun.gpus", job.needs.gpus, &span);
  AddWhole("vrun.attempts", job.attempt, &span);
  AddWhole("vrun.preemptions", job.preemptions, &span);
  AddWhole("vrun.array.elements", job.elements, &span);
  if (job.array != 0) {
    span.attributes.emplace_back("vrun.array.id", std::to_string(job.array));
    span.attributes.emplace_back("vrun.array.index", int64_t{job.array_index});
  }
  std::string reason = job.reason;
  if (const auto event = state.EventOf(job.id, job.user); event && event->has_exit()) {
    span.attributes.emplace_back("process.exit.code", int64_t{ExitStatus(event->exit())});
    if (reason.empty()) reason = EndReason(event->exit());
  }
  SetEnd(job.state, reason, &span);
  Tell(std::move(span));
}

}  // namespace vrun::control
