// SPDX-License-Identifier: Apache-2.0
// Maintain: announces, changes or ends a time in which nodes are out of service, and lists all that are not over.
#include "base/clock.h"
#include "control/ops/ops.h"
#include "control/ops/wishes.h"

namespace vrun::control {

Result<v1::MaintenanceList> Maintain(State& state, const rpc::Peer& peer, const v1::SetMaintenance& request) {
  constexpr size_t kMostNameBytes = 256;
  VRUN_TRY(state.ForgetPastMaintenance());
  if (!request.name().empty()) {
    VRUN_TRY(MayCall("/vrun.v1.Control/Maintain#change", state.RoleOf(peer.name)));
    if (request.name().size() > kMostNameBytes) return Error(Code::kInvalid, "the name is longer than 256 bytes");
    if (request.over()) {
      VRUN_TRY(state.EndMaintenance(request.name()));
    } else {
      MaintenanceRow window{request.name(), {}, request.from_us(), request.until_us()};
      std::string list;
      for (const std::string& text : request.nodes()) list += (list.empty() ? "" : ",") + text;
      if (list.empty()) return Error(Code::kInvalid, "no node: name one with --nodes: `vctl nodes` lists them");
      VRUN_ASSIGN(window.nodes, KnownNodes(state, list));
      if (window.until_us <= state.clock().Wall()) {
        return Error(Code::kInvalid, "its end, " + FormatRfc3339(window.until_us) + ", is over: choose a later one");
      }
      VRUN_TRY(state.SetMaintenance(window));
    }
  }
  v1::MaintenanceList list;
  for (const auto& [name, window] : state.maintenance()) {
    v1::SetMaintenance* out = list.add_windows();
    out->set_name(name);
    for (const std::string& node : window.nodes) out->add_nodes(node);
    out->set_from_us(window.from_us);
    out->set_until_us(window.until_us);
  }
  return list;
}

}  // namespace vrun::control
