// SPDX-License-Identifier: Apache-2.0
// Drain: nothing starts on these nodes until they are resumed. What runs there runs on.
#include <algorithm>

#include "control/ops/ops.h"
#include "control/ops/wishes.h"

namespace vrun::control {

Result<v1::NodesReply> Drain(State& state, const rpc::Peer& peer, const v1::DrainNodes& request) {
  constexpr size_t kMostReasonBytes = 1024;
  if (request.reason().size() > kMostReasonBytes) return Error(Code::kInvalid, "the reason is longer than 1024 bytes");
  std::string list;
  for (const std::string& text : request.nodes()) list += (list.empty() ? "" : ",") + text;
  if (list.empty()) return Error(Code::kInvalid, "no node: name one: `vctl nodes` lists them");
  VRUN_ASSIGN(std::vector<std::string> names, KnownNodes(state, list));
  for (const std::string& name : names) VRUN_TRY(state.Drain(name, !request.resume(), request.reason()));
  VRUN_ASSIGN(v1::NodesReply all, Nodes(state, peer, {}));
  v1::NodesReply reply;
  for (v1::NodeInfo& node : *all.mutable_nodes()) {
    if (std::find(names.begin(), names.end(), node.name()) != names.end()) *reply.add_nodes() = std::move(node);
  }
  return reply;
}

}  // namespace vrun::control
