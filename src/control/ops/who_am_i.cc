// SPDX-License-Identifier: Apache-2.0
// WhoAmI: what the controller takes the caller for, and what he may do.
#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::WhoAmIReply> WhoAmI(State& state, const rpc::Peer& peer, const v1::WhoAmIRequest&) {
  return state.Describe(peer.name);
}

}  // namespace vrun::control
