// SPDX-License-Identifier: Apache-2.0
// List: unfinished jobs, or also ended ones, newest first. The snapshot store gets the away jobs that have a place.
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr int kMaxJobs = 1000;
// Limit of the command line of a job in a list; Get returns all of it.
constexpr size_t kMaxArgvBytes = 4096;

}  // namespace

Result<v1::ListReply> List(State& state, const rpc::Peer& peer, const v1::ListRequest& request) {
  if (peer.role == "snapshots") {
    v1::ListReply placed;
    for (const auto& [id, job] : state.jobs()) {
      if (!state.IsPlaced(job)) continue;
      v1::JobInfo info = state.InfoOf(job, peer.name, 0);
      if (info.has_away()) *placed.add_jobs() = std::move(info);
    }
    return placed;
  }
  bool ended_too = request.all() && request.home_id().empty();
  VRUN_ASSIGN(std::vector<JobRow> jobs, state.store().ListJobs(ended_too, request.home_id(), kMaxJobs));
  v1::ListReply reply;
  for (const JobRow& job : jobs) *reply.add_jobs() = state.InfoOf(job, peer.name, kMaxArgvBytes);
  return reply;
}

}  // namespace vrun::control
