// SPDX-License-Identifier: Apache-2.0
// Cancel: a waiting job ends at once; otherwise its node ends it and reports. May be repeated.
#include "base/escape.h"
#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::CancelReply> Cancel(State& state, const rpc::Peer& peer, const v1::CancelRequest& request) {
  VRUN_ASSIGN(JobRow job, state.Find(request.job()));
  if (job.user != peer.name) {
    return Error(Code::kDenied, "job " + std::to_string(job.id) + ": it belongs to " + Escape(job.user) +
                                    ": only its owner may cancel it");
  }
  if (request.signal() < 0 || request.signal() > 64) return Error(Code::kInvalid, "cancel: not a signal");
  v1::CancelReply reply;
  reply.set_state(job.state);
  if (IsEnd(job.state)) return reply;
  VRUN_TRY(state.Cancel(job.id, request.signal()));
  auto it = state.jobs().find(job.id);
  reply.set_state(it == state.jobs().end() ? v1::CANCELLED : it->second.state);
  return reply;
}

}  // namespace vrun::control
