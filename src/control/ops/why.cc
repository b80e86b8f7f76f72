// SPDX-License-Identifier: Apache-2.0
// Why: the obstacles of a waiting job, or the decisions about a running or stopped one.
#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::WhyAnswer> Why(State& state, const rpc::Peer& peer, const v1::WhyRequest& request) {
  VRUN_ASSIGN(JobRow job,
              request.has_element() ? state.FindElement(request.job(), request.element()) : state.Find(request.job()));
  VRUN_TRY(state.MayTouch("/vrun.v1.Control/Why", peer.name, job));
  if (request.has_element() && job.elements != 0) return state.ExplainElement(job, request.element());
  v1::WhyAnswer answer = state.Explain(job);
  VRUN_TRY(state.AddAttempts(job.id, answer.mutable_attempts()));
  return answer;
}

}  // namespace vrun::control
