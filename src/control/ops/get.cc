// SPDX-License-Identifier: Apache-2.0
// Get: one job. The token, the command and its directory are for its own user only; of an away job, the token and the
// snapshot also for the snapshot store, which serves it.
#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::GetReply> Get(State& state, const rpc::Peer& peer, const v1::GetRequest& request) {
  VRUN_ASSIGN(std::optional<JobRow> job, state.store().GetJob(request.job()));
  if (!job) return Error(Code::kNotFound, "job " + std::to_string(request.job()) + ": no such job");
  v1::GetReply reply;
  *reply.mutable_info() = state.InfoOf(*job, peer.name, SIZE_MAX);
  VRUN_TRY(state.AddAttempts(job->id, reply.mutable_info()->mutable_attempts()));
  const bool serves = peer.role == "snapshots" && reply.info().has_away();
  const bool may_know = job->user == peer.name && peer.role == "home";
  if ((may_know || serves) && state.IsPlaced(*job)) {
    if (auto first = state.PlacementOf(*job, 0)) *reply.mutable_placement() = *std::move(first);
    for (uint32_t pod = 0; PodsAsked(*job) > 1 && pod < PodsAsked(*job); ++pod) {
      if (auto placement = state.PlacementOf(*job, pod)) *reply.add_placements() = *std::move(placement);
    }
  }
  v1::SubmitRequest submitted;
  if ((may_know || serves) && submitted.ParseFromString(job->spec) && submitted.has_snapshot()) {
    *reply.mutable_snapshot() = submitted.snapshot();
  }
  return reply;
}

}  // namespace vrun::control
