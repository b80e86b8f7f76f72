// SPDX-License-Identifier: Apache-2.0
// Presign: URLs of the pool's S3 store for what a node has or had jobs of.
#include "control/content_tier.h"
#include "control/ops/ops.h"

namespace vrun::control {

v1::PresignReply Presign(State& state, const std::string& node, const v1::PresignRequest& request) {
  if (ContentTier* tier = state.settings().tier) {
    Result<JobRow> job = state.Find(request.job());
    if (job && job->spec.empty()) {
      // Of a job that runs it is not kept in memory.
      const auto row = state.store().GetJob(request.job());
      if (row && *row) job->spec = (*row)->spec;
    }
    return tier->Presign(node, job, request);
  }
  v1::PresignReply reply;
  reply.set_id(request.id());
  reply.mutable_error()->set_code(static_cast<int>(Code::kUnsupported));
  reply.mutable_error()->set_message("the pool has no S3 store");
  return reply;
}

}  // namespace vrun::control
