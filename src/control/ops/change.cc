// SPDX-License-Identifier: Apache-2.0
// Change: holds, releases and requeues jobs. Each job is tried; the reply has the reasons for those that were not
// changed.
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr int kMostJobs = 100'000;

Status ChangeElements(State& state, uint64_t id, const ElementRanges& elements, v1::ChangeJobs::What what) {
  VRUN_ASSIGN(const Positions which, state.SelectElements(id, elements));
  switch (what) {
    case v1::ChangeJobs::HOLD: return state.HoldElements(id, which, true);
    case v1::ChangeJobs::RELEASE: return state.HoldElements(id, which, false);
    case v1::ChangeJobs::REQUEUE: return state.RequeueElements(id, which);
    default: return Error(Code::kUnsupported, "this controller does not know the change: update it");
  }
}

Status ChangeJob(State& state, const rpc::Peer& peer, const v1::JobSelection& selection, v1::ChangeJobs::What what) {
  const uint64_t id = selection.job();
  const std::string name = "job " + std::to_string(id);
  VRUN_ASSIGN(JobRow job, state.Find(id));
  VRUN_TRY(state.MayTouch("/vrun.v1.Control/Change", peer.name, job));
  if (IsEnd(job.state)) return Error(Code::kInvalid, name + ": it has ended");
  if (job.elements != 0) return ChangeElements(state, id, selection.elements(), what);
  if (!selection.elements().empty()) return Error(Code::kInvalid, name + ": it is no array: name the job alone");
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
    Status changed = ChangeJob(state, peer, selection, request.what());
    if (state.store().failure()) return *state.store().failure();
    if (!changed) reply.add_problems(changed.error().message());
  }
  return reply;
}

}  // namespace vrun::control
