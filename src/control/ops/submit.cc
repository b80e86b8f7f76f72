// SPDX-License-Identifier: Apache-2.0
// Submit: durable, idempotent by (user, request id), placed at once when there is room.
#include "base/escape.h"
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr size_t kMaxSpecBytes = 16u << 20;
constexpr size_t kMaxNameBytes = 256;

Status Validate(const v1::SubmitRequest& request, size_t spec_bytes) {
  if (request.command().argv_size() == 0) return Error(Code::kInvalid, "submit: no command");
  if (request.request_id().empty() || request.request_id().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the request id is missing or too long");
  }
  if (request.pool().size() > kMaxNameBytes || request.name().size() > kMaxNameBytes) {
    return Error(Code::kInvalid, "submit: the name of the job or the pool is longer than " +
                                     std::to_string(kMaxNameBytes) + " bytes: use a shorter one");
  }
  if (spec_bytes > kMaxSpecBytes) {
    return Error(Code::kInvalid, "submit: command and environment have " + std::to_string(spec_bytes >> 20) +
                                     " MiB, 16 are the limit: pass large values in files");
  }
  return {};
}

Result<std::string> PoolOf(const State& state, const std::string& asked) {
  std::vector<std::string> pools = state.Pools();
  if (asked.empty()) {
    if (pools.size() == 1) return pools[0];
    return Error(Code::kInvalid, "submit: no pool is named: use -P POOL");
  }
  // Before the first node has joined nobody can say which names are wrong: the job waits, and says for what.
  if (pools.empty() || state.KnowsPool(asked)) return asked;
  std::string known;
  for (const std::string& p : pools) known += (known.empty() ? "" : ", ") + Escape(p);
  return Error(Code::kNotFound, "pool " + Escape(asked) + ": no such pool: known pools are " + known);
}

void AddPlacement(const State& state, uint64_t id, v1::SubmitReply* reply) {
  auto it = state.jobs().find(id);
  if (it != state.jobs().end() && it->second.state >= v1::STARTING && it->second.state <= v1::COMPLETING) {
    *reply->mutable_placement() = state.PlacementOf(it->second);
  }
}

}  // namespace

Result<v1::SubmitReply> Submit(State& state, const rpc::Peer& peer, const v1::SubmitRequest& request) {
  std::string spec = request.SerializeAsString();
  VRUN_TRY(Validate(request, spec.size()));
  v1::SubmitReply reply;
  VRUN_ASSIGN(std::optional<uint64_t> before, state.store().FindRequest(peer.name, request.request_id()));
  if (before) {
    reply.set_job(*before);
    AddPlacement(state, *before, &reply);
    return reply;
  }
  JobRow job;
  VRUN_ASSIGN(job.pool, PoolOf(state, request.pool()));
  job.needs = ToSched(request.resources());
  if (job.needs.milli_cpus == 0) job.needs.milli_cpus = 1000;
  VRUN_TRY(sched::Feasible(state.scheduler(), job.pool, job.needs));
  job.user = peer.name;
  job.request_id = request.request_id();
  job.home_id = request.home_id();
  job.name = request.name();
  job.submitted_us = state.clock().Wall();
  job.spec = std::move(spec);
  VRUN_ASSIGN(uint64_t id, state.Add(std::move(job)));
  reply.set_job(id);
  AddPlacement(state, id, &reply);
  return reply;
}

}  // namespace vrun::control
