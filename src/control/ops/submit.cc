// SPDX-License-Identifier: Apache-2.0
// Submit: durable, idempotent by (user, request id). Whether the job was placed at once is known after the batch's
// decision.
#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "control/gpus/gpu_needs.h"
#include "control/needs/default_memory.h"
#include "control/ops/ops.h"
#include "control/ops/wishes.h"

namespace vrun::control {
namespace {

constexpr size_t kMaxSpecBytes = 16u << 20;
constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxDependencies = 10'000;
// What is waited for.
enum class Kind { kEnd, kSuccess, kFailure, kStart };

Status Validate(const v1::SubmitRequest& request, size_t spec_bytes) {
  if (request.spec().command().argv_size() == 0) return Error(Code::kInvalid, "submit: no command");
  if (request.request_id().empty() || request.request_id().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the request id is missing or too long");
  }
  if (request.request_id().starts_with(kElementRequests)) {
    return Error(Code::kInvalid, "submit: the request id is one of those that elements of arrays have");
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
  return Error(Code::kNotFound, "pool " + Escape(asked) + ": no such pool: known pools are " + known +
                                    ": name one with -P, or as `pool` in config.toml");
}

Status CheckScheduling(const v1::Scheduling& scheduling) {
  if (scheduling.signal() < 0 || scheduling.signal() > 64) return Error(Code::kInvalid, "submit: not a signal");
  if (scheduling.team().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the name of the team is too long: correct --account");
  }
  if (scheduling.project().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the name of the project is too long: correct --project");
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

// Whether the dependency still has to be waited for. kInvalid: it never ends.
Result<bool> IsOpen(State& state, uint64_t id, Kind kind) {
  const auto known = state.jobs().find(id);
  if (known != state.jobs().end()) {
    if (kind != Kind::kStart) return true;
    return known->second.elements != 0 ? !state.AllStarted(id) : known->second.started_us == 0;
  }
  VRUN_ASSIGN(const std::optional<v1::JobState> ended, state.store().StateOfJob(id));
  const std::string job = "job " + std::to_string(id);
  if (!ended) return Error(Code::kNotFound, "dependency: " + job + ": no such job");
  const std::string never = ", so this one would never start: use afterany:" + std::to_string(id) + " or leave it out";
  if (kind == Kind::kSuccess && ended != v1::COMPLETED) {
    return Error(Code::kInvalid, "dependency: " + job + " did not succeed" + never);
  }
  if (kind == Kind::kFailure && ended == v1::COMPLETED) {
    return Error(Code::kInvalid, "dependency: " + job + " did not fail" + never);
  }
  return false;
}

// Where one of both is no array, nothing corresponds: all of it has to succeed.
Status SettleCorresponding(State& state, bool array, v1::Scheduling* s) {
  google::protobuf::RepeatedField<uint64_t> corresponding;
  std::set<uint64_t> seen;
  for (const uint64_t id : s->after_corresponding()) {
    if (!seen.insert(id).second) continue;
    auto other = state.Find(id);
    if (!other) return std::move(other).error().With("dependency");
    array && other->elements != 0 ? corresponding.Add(id) : s->add_after_ok(id);
  }
  s->mutable_after_corresponding()->Swap(&corresponding);
  return {};
}

// Resolves dependencies on ended jobs for good, because only unfinished jobs are known to those who wait for them.
Status SettleDependencies(State& state, bool array, v1::Scheduling* s) {
  const int count = s->after_size() + s->after_ok_size() + s->after_not_ok_size() + s->after_start_size() +
                    s->after_corresponding_size();
  if (count > kMaxDependencies) {
    return Error(Code::kInvalid, "submit: more than " + std::to_string(kMaxDependencies) + " dependencies: name fewer");
  }
  VRUN_TRY(SettleCorresponding(state, array, s));
  const std::pair<google::protobuf::RepeatedField<uint64_t>*, Kind> lists[] = {
      {s->mutable_after(), Kind::kEnd},
      {s->mutable_after_ok(), Kind::kSuccess},
      {s->mutable_after_not_ok(), Kind::kFailure},
      {s->mutable_after_start(), Kind::kStart}};
  for (const auto& [list, kind] : lists) {
    google::protobuf::RepeatedField<uint64_t> open;
    std::set<uint64_t> seen;
    for (const uint64_t id : *list) {
      if (!seen.insert(id).second) continue;
      VRUN_ASSIGN(const bool waits, IsOpen(state, id, kind));
      if (waits) open.Add(id);
    }
    list->Swap(&open);
  }
  return {};
}

// The elements, with the indexes filled in.
Result<v1::Array> ElementsOf(const v1::SubmitRequest& request) {
  v1::Array array = request.array();
  Complete(&array);
  VRUN_TRY(CheckArray(array));
  VRUN_TRY(CheckNames(request.spec(), array));
  if (request.spec().command().terminal()) {
    return Error(Code::kInvalid, "submit: an array cannot use a terminal: leave --pty out");
  }
  return array;
}

}  // namespace

void AddPlacement(State& state, v1::SubmitReply* reply) {
  auto it = state.jobs().find(reply->job());
  reply->set_deadline(state.DeadlineOf(reply->job()));
  if (it != state.jobs().end()) {
    const std::string budget = state.BudgetWarning(it->second.scheduling.team());
    if (!budget.empty()) reply->set_warning(budget);
  }
  if (it == state.jobs().end() || !state.IsPlaced(it->second)) return;
  if (auto placement = state.PlacementOf(it->second, 0)) *reply->mutable_placement() = *std::move(placement);
}

Result<v1::SubmitReply> Submit(State& state, const rpc::Peer& peer, const v1::SubmitRequest& request) {
  VRUN_TRY(Validate(request, request.ByteSizeLong()));
  v1::SubmitReply reply;
  VRUN_ASSIGN(std::optional<uint64_t> before, state.store().FindRequest(peer.name, request.request_id()));
  if (before) {
    reply.set_job(*before);
    return reply;
  }
  if (!request.test_only()) VRUN_TRY(state.CheckBounds(peer.name, request.ByteSizeLong()));
  v1::Array array;
  if (request.has_array()) {
    VRUN_ASSIGN(array, ElementsOf(request));
  }
  JobRow job;
  VRUN_ASSIGN(job.pool, PoolOf(state, request.spec().pool()));
  VRUN_TRY(CheckGpuNeeds(request.spec().resources()));
  job.needs = ToNeeds(request.spec().resources());
  if (job.needs.milli_cpus == 0) job.needs.milli_cpus = 1000;
  job.gang = request.spec().gang();
  job.user = peer.name;
  VRUN_TRY(CheckScheduling(request.spec().scheduling()));
  job.scheduling = request.spec().scheduling();
  VRUN_TRY(CheckTimes(job.scheduling, state.clock().Wall()));
  VRUN_TRY(SettleDependencies(state, request.has_array(), &job.scheduling));
  const v1::JobClass klass =
      job.scheduling.class_() == v1::JOB_CLASS_UNSPECIFIED ? v1::TRAINING : job.scheduling.class_();
  job.scheduling.set_class_(klass);
  VRUN_ASSIGN(*job.scheduling.mutable_team(),
              state.settings().scheduler.TeamFor(peer.name, request.spec().scheduling().team(), klass));
  const bool share = KindOf(job.needs) == GpuKind::kShare || KindOf(job.needs) == GpuKind::kByMemory;
  if (share) {
    const bool team = state.settings().scheduler.teams_share_gpus;
    job.needs.sharers = SharersOf(team ? "team " + job.scheduling.team() : "user " + job.user);
  }
  VRUN_TRY(CheckWishes(state, &job));
  if (job.needs.memory_bytes == 0) job.needs.memory_bytes = DefaultMemory(state.SizesOf(job.pool), job.needs);
  VRUN_TRY(CheckFeasible(state.scheduler(), job));
  job.name = request.spec().name();
  if (request.spec().has_notify()) {
    VRUN_ASSIGN(job.notify, state.NotifyOf(peer.name, request.spec().notify(), reply.mutable_warning()));
  }
  if (request.test_only()) {
    VRUN_ASSIGN(*reply.mutable_forecast(), state.Forecast(job));
    return reply;
  }
  job.request_id = request.request_id();
  job.home_id = request.home_id();
  job.submitted_us = state.clock().Wall();
  if (!request.has_array()) {
    job.spec = request.SerializeAsString();
    job.spec_bytes = job.spec.size();
    VRUN_ASSIGN(uint64_t id, state.Add(std::move(job)));
    reply.set_job(id);
    return reply;
  }
  v1::SubmitRequest whole = request;
  *whole.mutable_array() = array;
  job.spec = whole.SerializeAsString();
  job.spec_bytes = job.spec.size();
  VRUN_ASSIGN(uint64_t id, state.AddArray(std::move(job), array));
  reply.set_job(id);
  return reply;
}

}  // namespace vrun::control
