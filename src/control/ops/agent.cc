// SPDX-License-Identifier: Apache-2.0
// Agent: a node registers and reports what it knows. Controller and node reconcile their jobs.
//
// Attempts that the controller believes to be on the node but that the node does not know:
//   - STARTING, same boot: never started, because the node has not received the order. It is ordered again under the
//     same epoch.
//   - otherwise it is over: the host was restarted, or the node has lost its journal; there will be no exit record.
// Attempts that the node has but the controller does not want are stopped (State::Apply).
#include <algorithm>
#include <set>

#include "base/escape.h"
#include "base/log.h"
#include "control/ops/ops.h"
#include "control/tier/content_tier.h"

namespace vrun::control {
namespace {

constexpr size_t kMaxTextBytes = 256;
constexpr int kMaxAddresses = 16;

Status Validate(const std::string& name, const v1::Register& request) {
  if (request.node() != name) {
    return Error(Code::kDenied, "register: the node calls itself " + Escape(request.node()) +
                                    " but its certificate is for " + Escape(name) + ": use one name");
  }
  bool fine = !request.pool().empty() && request.pool().size() <= kMaxTextBytes &&
              request.version().size() <= kMaxTextBytes && request.addresses_size() <= kMaxAddresses &&
              request.total().gpu_type().size() <= kMaxTextBytes;
  for (const std::string& a : request.addresses()) {
    fine = fine && !a.empty() && a.size() <= kMaxTextBytes && a.find('\n') == std::string::npos;
  }
  if (!fine) return Error(Code::kInvalid, "register: the node's pool, version or addresses are missing or too long");
  return {};
}

Status ReconcileUnlisted(State& state, const JobRow& job, bool rebooted) {
  const std::string node = Escape(job.node);
  if (state.StartHeldBack(job)) return {};
  if (rebooted) {
    const std::string reason = "node " + node + " was restarted while the job was on it";
    VRUN_ASSIGN(const bool again, state.Requeue(job.id, reason));
    return again ? Status() : state.End(job.id, v1::FAILED, "", reason);
  }
  if (job.state != v1::STARTING) {
    return state.End(job.id, v1::FAILED, "", "node " + node + " no longer has a record of the job");
  }
  if (job.cancelled) return state.End(job.id, v1::CANCELLED, "", "cancelled before it started");
  if (!job.stopping.empty()) {
    VRUN_ASSIGN(const bool again, state.Requeue(job.id, job.stopping));
    if (again) return {};
  }
  return state.SendStart(job);
}

}  // namespace

Status RegisterNode(State& state, const std::string& name, const v1::Register& request) {
  VRUN_TRY(Validate(name, request));
  // Nothing is placed on the node until both sides agree, even if this connection replaces one that was still open.
  state.Disconnected(name);
  NodeRow row;
  row.addresses.assign(request.addresses().begin(), request.addresses().end());
  bool rebooted = false, moved = false;
  if (auto it = state.nodes().find(name); it != state.nodes().end()) {
    row.draining = it->second.row.draining;
    rebooted = it->second.row.boot_id != request.boot_id();
    moved = it->second.row.addresses != row.addresses;
  }
  row.name = name;
  row.pool = request.pool();
  row.total = request.total().SerializeAsString();
  row.version = request.version();
  row.boot_id = request.boot_id();
  row.last_seen_us = state.clock().Wall();

  v1::ControllerMessage registered;
  registered.mutable_registered()->set_heartbeat_ms(static_cast<uint32_t>(state.settings().heartbeat_micros / 1000));
  const ContentTier* tier = state.settings().tier;
  registered.mutable_registered()->set_s3(tier != nullptr && !tier->state().bucket().empty());
  state.outbox().to_nodes.emplace_back(name, std::move(registered));

  std::set<std::pair<uint64_t, uint32_t>> listed;
  for (const v1::AttemptReport& report : request.attempts()) {
    listed.emplace(report.job(), report.attempt());
    VRUN_TRY(state.Apply(name, report));
  }
  for (uint64_t id : state.JobsOn(name)) {
    const auto it = state.jobs().find(id);
    if (it == state.jobs().end()) continue;  // it depended on a job that has just ended, and ended with it
    const JobRow job = it->second;
    if (!listed.contains({job.id, job.attempt})) {
      VRUN_TRY(ReconcileUnlisted(state, job, rebooted));
    } else {
      VRUN_TRY(state.SendOrders(job));
    }
  }
  for (uint64_t id : state.JobsLeaving(name)) {
    const auto it = state.jobs().find(id);
    if (it != state.jobs().end() && !listed.contains({id, it->second.leaving.attempt})) VRUN_TRY(state.Left(id));
  }
  // Last, so that new jobs are placed according to the room left after the reports.
  VRUN_TRY(state.PutNode(row));
  // Homes still connect to the node's old address.
  if (moved) {
    for (uint64_t id : state.JobsOn(name)) state.outbox().jobs.insert(id);
  }
  Node& node = state.nodes().at(name);
  node.connected = true;
  node.last_heard = state.clock().Monotonic();
  LogInfo("node {} of pool {} has registered with {} attempts", Escape(name), Escape(row.pool),
          request.attempts_size());
  return {};
}

Status Heard(State& state, const std::string& name) {
  if (auto it = state.nodes().find(name); it != state.nodes().end()) it->second.last_heard = state.clock().Monotonic();
  return {};
}

}  // namespace vrun::control
