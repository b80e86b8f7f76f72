// SPDX-License-Identifier: Apache-2.0
// Change: holds, releases and requeues jobs. Each job is tried; the reply has the reasons for those that were not
// changed.
#include "base/escape.h"
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr int kMostJobs = 100'000;

Status ChangeJob(State& state, const rpc::Peer& peer, uint64_t id, v1::ChangeJobs::What what) {
  const std::string name = "job " + std::to_string(id);
  VRUN_ASSIGN(JobRow job, state.Find(id));
  if (job.user != peer.name && !state.settings().scheduler.MayAdminister(peer.name)) {
    return Error(Code::kDenied, name + ": it belongs to " + Escape(job.user) + ": only its owner may change it");
  }
  if (IsEnd(job.state)) return Error(Code::kInvalid, name + ": it has ended");
  switch (what) {
    case v1::ChangeJobs::HOLD: return state.SetHold(id, true);
    case v1::ChangeJobs::RELEASE: return state.SetHold(id, false);
    case v1::ChangeJobs::REQUEUE: return state.StopToRequeue(id);
    default: return Error(Code::kUnsupported, name + ": this controller does not know the change: update it");
  }
}

}  // namespace

Result<v1::ChangeReply> Change(State& state, const rpc::Peer& peer, const v1::ChangeJobs& request) {
  if (request.jobs_size() > kMostJobs) return Error(Code::kInvalid, "more than 100000 jobs: name fewer");
  v1::ChangeReply reply;
  for (const v1::JobSelection& selection : request.jobs()) {
    if (selection.elements_size() > 0) {
      reply.add_problems("job " + std::to_string(selection.job()) + ": it is no array: name the job alone");
      continue;
    }
    Status changed = ChangeJob(state, peer, selection.job(), request.what());
    if (state.store().failure()) return *state.store().failure();
    if (!changed) reply.add_problems(changed.error().message());
  }
  return reply;
}

}  // namespace vrun::control
