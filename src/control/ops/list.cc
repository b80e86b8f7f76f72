// SPDX-License-Identifier: Apache-2.0
// List: unfinished jobs, or also ended ones, newest first. An array is one job; of its elements only those that have
// been placed are listed. A home gets all of its own unfinished jobs, because it gives up what it holds for others.
// The snapshot store gets the away jobs that have a place.
#include <algorithm>

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
      const Result<v1::SubmitRequest> submitted = state.RequestOf(job);
      if (!submitted || !submitted->spec().away()) continue;
      v1::JobInfo* info = placed.add_jobs();
      *info = state.InfoOf(job, "", 0);
      info->mutable_away();
    }
    return placed;
  }
  v1::ListReply reply;
  if (!request.home_id().empty()) {
    for (const auto& [id, job] : state.jobs()) {
      if (job.home_id == request.home_id()) *reply.add_jobs() = state.InfoOf(job, peer.name, 0);
    }
    std::reverse(reply.mutable_jobs()->begin(), reply.mutable_jobs()->end());
    return reply;
  }
  VRUN_ASSIGN(std::vector<JobRow> jobs, state.store().ListJobs(request.all(), kMaxJobs));
  for (const JobRow& job : jobs) *reply.add_jobs() = state.InfoOf(job, peer.name, kMaxArgvBytes);
  return reply;
}

}  // namespace vrun::control
