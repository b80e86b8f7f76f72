// SPDX-License-Identifier: Apache-2.0
// Submit: durable, idempotent by (user, request id). Whether the job was placed at once is known after the batch's
// decision.
#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "control/ops/ops.h"
#include "control/state/wishes.h"

namespace vrun::control {
namespace {

constexpr size_t kMaxSpecBytes = 16u << 20;
constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxDependencies = 1000;

Status Validate(const v1::SubmitRequest& request, size_t spec_bytes) {
  if (request.spec().command().argv_size() == 0) return Error(Code::kInvalid, "submit: no command");
  if (request.request_id().empty() || request.request_id().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the request id is missing or too long");
  }
  if (request.spec().pool().size() > kMaxNameBytes || request.spec().name().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the name of the job or the pool is longer than " +
                                     std::to_string(kMaxNameBytes) + " bytes: use a shorter one");
  }
  if (request.spec().gang().pods() > 1 && request.spec().scheduling().retries_size() > 0) {
    return Error(Code::kUnsupported, "submit: a job of several pods is not started again by --retry: leave it out");
  }
  if (spec_bytes > kMaxSpecBytes) {
    return Error(Code::kInvalid, "submit: command and environment have " + std::to_string(spec_bytes >> 20) +
                                     " MiB, 16 are the limit: pass large values in files");
  }
  return CheckGang(request.spec());
}

Result<std::string> PoolOf(const State& state, const std::string& asked) {
  std::vector<std::string> pools = state.Pools();
  if (asked.empty()) {
    if (pools.size() == 1) return pools[0];
    return Error(Code::kInvalid, "submit: no pool is named: use -P POOL");
  }
  // Before the first node has joined, it is unknown which names are wrong: the job waits and gives the reason.
  if (pools.empty() || state.KnowsPool(asked)) return asked;
  std::string known;
  for (const std::string& p : pools) known += (known.empty() ? "" : ", ") + Escape(p);
  return Error(Code::kNotFound, "pool " + Escape(asked) + ": no such pool: known pools are " + known);
}

Status CheckScheduling(const v1::Scheduling& scheduling) {
  if (scheduling.signal() < 0 || scheduling.signal() > 64) return Error(Code::kInvalid, "submit: not a signal");
  if (scheduling.team().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the name of the team is too long: correct --account");
  }
  if (!v1::JobClass_IsValid(scheduling.class_())) {
    return Error(Code::kUnsupported, "submit: this controller does not know the class: choose another");
  }
  return {};
}

Status CheckTimes(const v1::Scheduling& s, int64_t now) {
  if (s.begin_us() < 0 || s.deadline_us() < 0) return Error(Code::kInvalid, "submit: a time before 1970: correct it");
  if (s.hard_deadline() && s.deadline_us() == 0) return Error(Code::kInvalid, "submit: a hard deadline without a time");
  if (s.deadline_us() != 0 && s.deadline_us() <= std::max(now, s.begin_us())) {
    return Error(Code::kInvalid, "submit: the deadline " + FormatRfc3339(s.deadline_us()) + " is " +
                                     (s.deadline_us() <= now ? "over" : "before the begin time") +
                                     ": choose a later one");
  }
  return {};
}

// Resolves dependencies on ended jobs for good, because the scheduler knows only unfinished jobs.
Status SettleDependencies(State& state, v1::Scheduling* s) {
  if (s->after_size() + s->after_ok_size() > kMaxDependencies) {
    return Error(Code::kInvalid, "submit: more than " + std::to_string(kMaxDependencies) + " dependencies: name fewer");
  }
  for (auto* list : {s->mutable_after(), s->mutable_after_ok()}) {
    google::protobuf::RepeatedField<uint64_t> open;
    for (const uint64_t id : *list) {
      auto other = state.Find(id);
      if (!other) return std::move(other).error().With("dependency");
      if (!IsEnd(other->state)) {
        open.Add(id);
      } else if (list == s->mutable_after_ok() && other->state != v1::COMPLETED) {
        return Error(Code::kInvalid, "dependency: job " + std::to_string(id) +
                                         " did not succeed, so this one would never start: use afterany:" +
                                         std::to_string(id) + " or leave it out");
      }
    }
    list->Swap(&open);
  }
  return {};
}

}  // namespace

void AddPlacement(State& state, v1::SubmitReply* reply) {
  auto it = state.jobs().find(reply->job());
  reply->set_deadline(state.DeadlineOf(reply->job()));
  if (it == state.jobs().end() || !state.IsPlaced(it->second)) return;
  if (auto placement = state.PlacementOf(it->second, 0)) *reply->mutable_placement() = *std::move(placement);
}

Result<v1::SubmitReply> Submit(State& state, const rpc::Peer& peer, const v1::SubmitRequest& request) {
  std::string spec = request.SerializeAsString();
  VRUN_TRY(Validate(request, spec.size()));
  v1::SubmitReply reply;
  VRUN_ASSIGN(std::optional<uint64_t> before, state.store().FindRequest(peer.name, request.request_id()));
  if (before) {
    reply.set_job(*before);
    return reply;
  }
  JobRow job;
  VRUN_ASSIGN(job.pool, PoolOf(state, request.spec().pool()));
  job.needs = ToNeeds(request.spec().resources());
  if (job.needs.milli_cpus == 0) job.needs.milli_cpus = 1000;
  job.gang = request.spec().gang();
  job.user = peer.name;
  VRUN_TRY(CheckScheduling(request.spec().scheduling()));
  job.scheduling = request.spec().scheduling();
  VRUN_TRY(CheckTimes(job.scheduling, state.clock().Wall()));
  VRUN_TRY(SettleDependencies(state, &job.scheduling));
  const v1::JobClass klass =
      job.scheduling.class_() == v1::JOB_CLASS_UNSPECIFIED ? v1::TRAINING : job.scheduling.class_();
  job.scheduling.set_class_(klass);
  VRUN_ASSIGN(*job.scheduling.mutable_team(),
              state.settings().scheduler.TeamFor(peer.name, request.spec().scheduling().team(), klass));
  VRUN_TRY(CheckWishes(state, &job));
  VRUN_TRY(CheckFeasible(state.scheduler(), job));
  job.name = request.spec().name();
  if (request.test_only()) {
    VRUN_ASSIGN(*reply.mutable_forecast(), state.Forecast(job));
    return reply;
  }
  job.request_id = request.request_id();
  job.home_id = request.home_id();
  job.submitted_us = state.clock().Wall();
  job.spec = std::move(spec);
  VRUN_ASSIGN(uint64_t id, state.Add(std::move(job)));
  reply.set_job(id);
  return reply;
}

}  // namespace vrun::control
