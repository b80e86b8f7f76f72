// SPDX-License-Identifier: Apache-2.0
// Get: one job, or an element of an array. The token, the command and its directory are for its own user only; of an
// away job, the token and the snapshot also for the snapshot store, which serves it.
#include <algorithm>

#include "control/ops/ops.h"
#include "control/state/gang.h"

namespace vrun::control {

Result<v1::GetReply> Get(State& state, const rpc::Peer& peer, const v1::GetRequest& request) {
  v1::GetReply reply;
  const std::string viewer = peer.role == "home" ? peer.name : "";
  uint64_t id = request.job();
  if (request.has_element()) {
    VRUN_ASSIGN(const JobRow element, state.FindElement(id, request.element()));
    if (element.elements != 0) {
      *reply.mutable_info() = state.InfoOfElement(element, request.element(), viewer);
      return reply;
    }
    id = element.id;
  }
  VRUN_ASSIGN(std::optional<JobRow> job, state.store().GetJob(id));
  if (!job) return Error(Code::kNotFound, "job " + std::to_string(id) + ": no such job");
  *reply.mutable_info() = state.InfoOf(*job, viewer, SIZE_MAX);
  if (state.Shows(viewer, *job)) {
    VRUN_TRY(state.AddAttempts(job->id, reply.mutable_info()->mutable_attempts()));
    VRUN_TRY(state.SumGpuUse(job->id, reply.mutable_info()));
    VRUN_TRY(state.SumCost(job->id, reply.mutable_info()));
  }
  const Result<v1::SubmitRequest> submitted = state.RequestOf(*job);
  const bool serves = peer.role == "snapshots" && submitted && submitted->spec().away();
  if (serves) reply.mutable_info()->mutable_away();
  const bool may_know = job->user == peer.name && peer.role == "home";
  if (!may_know && !serves) return reply;
  if (state.IsPlaced(*job)) {
    if (auto first = state.PlacementOf(*job, 0)) *reply.mutable_placement() = *std::move(first);
    uint32_t pods = PodsAsked(*job) > 1 ? static_cast<uint32_t>(job->pods.size()) : 0;
    for (const PodRow& pod : job->leaving.pods) pods = std::max(pods, PodsAsked(*job) > 1 ? pod.pod + 1 : 0);
    for (uint32_t pod = 0; pod < pods; ++pod) {
      const bool gone = job->leaving.attempt == 0 && HasLeft(job->pods[pod]) && IsOver(job->pods[pod].state);
      if (gone) continue;
      if (auto placement = state.PlacementOf(*job, pod)) *reply.add_placements() = *std::move(placement);
    }
  }
  if (submitted && submitted->has_snapshot()) *reply.mutable_snapshot() = submitted->snapshot();
  return reply;
}

}  // namespace vrun::control
