// SPDX-License-Identifier: Apache-2.0
// Cancel, for those who may (access/access.h): a waiting job ends at once; otherwise its node ends it and reports. May
// be repeated. Of an array all elements, or those that are named.
#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::CancelReply> Cancel(State& state, const rpc::Peer& peer, const v1::CancelRequest& request) {
  VRUN_ASSIGN(JobRow job, state.Find(request.job()));
  VRUN_TRY(state.MayTouch("/vrun.v1.Control/Cancel", peer.name, job));
  if (request.signal() < 0 || request.signal() > 64) return Error(Code::kInvalid, "cancel: not a signal");
  if (!request.elements().empty() && job.elements == 0) {
    return Error(Code::kInvalid, "job " + std::to_string(job.id) + ": it is no array: name the job alone");
  }
  v1::CancelReply reply;
  reply.set_state(job.state);
  if (IsEnd(job.state)) return reply;
  if (request.elements().empty()) {
    VRUN_TRY(state.Cancel(job.id, request.signal()));
  } else {
    VRUN_ASSIGN(const Positions which, state.SelectElements(job.id, request.elements()));
    VRUN_TRY(state.CancelElements(job.id, which, request.signal()));
  }
  auto it = state.jobs().find(job.id);
  if (it != state.jobs().end()) {
    reply.set_state(it->second.state);
  } else {
    VRUN_ASSIGN(job, state.Find(job.id));
    reply.set_state(job.state);
  }
  return reply;
}

}  // namespace vrun::control
