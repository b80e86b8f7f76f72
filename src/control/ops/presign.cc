// SPDX-License-Identifier: Apache-2.0
// Presign: URLs of the pool's S3 store, for nodes about jobs that they have or had, and for snapshots.
#include "control/ops/ops.h"
#include "control/tier/content_tier.h"

namespace vrun::control {

namespace {

v1::PresignReply NoStore() {
  v1::PresignReply reply;
  reply.mutable_error()->set_code(static_cast<int>(Code::kUnsupported));
  reply.mutable_error()->set_message("the pool has no S3 store");
  return reply;
}

}  // namespace

Result<v1::PresignReply> PresignVault(State& state, const rpc::Peer&, const v1::VaultPresign& request) {
  ContentTier* tier = state.settings().tier;
  return tier != nullptr ? tier->PresignVault(request) : NoStore();
}

v1::PresignReply Presign(State& state, const std::string& node, const v1::PresignRequest& request) {
  if (ContentTier* tier = state.settings().tier) {
    Result<JobRow> job = state.Find(request.job());
    if (job && job->spec.empty()) {
      // Not in memory for a running job.
      if (const auto submitted = state.RequestOf(*job)) job->spec = submitted->SerializeAsString();
    }
    return tier->Presign(node, job, request);
  }
  v1::PresignReply reply = NoStore();
  reply.set_id(request.id());
  return reply;
}

}  // namespace vrun::control
