// SPDX-License-Identifier: Apache-2.0
// Agent: a node registers and reports what it knows. Controller and node reconcile their jobs.
//
// Pods that the controller believes to be on the node but that the node does not know:
//   - STARTING, same boot: never started, because the node has not received the order. It is ordered again under the
//     same epoch.
//   - otherwise it is over: the host was restarted, or the node has lost its journal; there will be no exit record.
// Pods that the node has but the controller does not want are stopped (State::Apply).
#include <algorithm>
#include <set>
#include <tuple>

#include "base/escape.h"
#include "base/log.h"
#include "control/gpus/gpu_needs.h"
#include "control/ops/ops.h"
#include "control/tier/content_tier.h"

namespace vrun::control {
namespace {

constexpr size_t kMaxTextBytes = 256;
constexpr int kMaxAddresses = 16;
constexpr int kMaxLabels = 256;

Status Validate(const std::string& name, const v1::Register& request) {
  if (request.node() != name) {
    return Error(Code::kDenied, "register: the node calls itself " + Escape(request.node()) +
                                    " but its certificate is for " + Escape(name) + ": use one name");
  }
  const v1::NodeFacts& facts = request.facts();
  bool fine = !request.pool().empty() && request.pool().size() <= kMaxTextBytes &&
              request.version().size() <= kMaxTextBytes && request.addresses_size() <= kMaxAddresses &&
              request.total().gpu_type().size() <= kMaxTextBytes;
  for (const std::string& a : request.addresses()) {
    fine = fine && !a.empty() && a.size() <= kMaxTextBytes && a.find('\n') == std::string::npos;
  }
  if (!fine) return Error(Code::kInvalid, "register: the node's pool, version or addresses are missing or too long");
  fine = std::max({facts.island().size(), facts.rack().size(), facts.block().size(), facts.zone().size(),
                   facts.mig_model().size()}) <= kMaxTextBytes &&
         std::max(facts.labels_size(), facts.taints_size()) <= kMaxLabels && facts.gpu_groups_size() <= kMaxLabels;
  for (const auto* list : {&facts.labels(), &facts.taints()}) {
    for (const std::string& text : *list) fine = fine && !text.empty() && text.size() <= kMaxTextBytes;
  }
  if (!fine) return Error(Code::kInvalid, "register: the node's labels, taints or place are too many or too long");
  if (facts.gpus_size() > sched::core::kMaxGpus) {
    return Error(Code::kInvalid, "register: the node has " + std::to_string(facts.gpus_size()) + " GPUs, " +
                                     std::to_string(sched::core::kMaxGpus) + " are the limit");
  }
  return {};
}

// Its node found what was left of it, and no record of its end: as if the node did not know it.
bool DiedWithItsHost(State& state, const std::string& node, const v1::AttemptReport& report) {
  if (!IsOver(report.state()) || report.exit().kind() != v1::ExitRecord::START_FAILED) return false;
  const auto job = state.jobs().find(report.job());
  if (job == state.jobs().end() || job->second.epoch != report.epoch()) return false;
  const auto pods = state.PodsOn(node);
  return std::find(pods.begin(), pods.end(), std::pair(report.job(), report.pod())) != pods.end();
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
    row.reason = it->second.row.reason;
    row.health = it->second.row.health;
    rebooted = it->second.row.boot_id != request.boot_id();
    moved = it->second.row.addresses != row.addresses;
  }
  row.name = name;
  row.pool = request.pool();
  row.total = request.total().SerializeAsString();
  v1::NodeFacts facts = request.facts();
  CutGpus(facts.mutable_gpus());
  row.facts = facts.SerializeAsString();
  // Whether it wants to drain it says in its next report.
  const v1::NodeHealth health = HealthOf(row);
  state.JudgeHealth(&row, health.drain().empty() ? health.overruled() : health.drain(), !state.nodes().contains(name));
  row.version = request.version();
  row.boot_id = request.boot_id();
  row.last_seen_us = state.clock().Wall();

  v1::ControllerMessage registered;
  registered.mutable_registered()->set_heartbeat_ms(static_cast<uint32_t>(state.settings().heartbeat_micros / 1000));
  const ContentTier* tier = state.settings().tier;
  registered.mutable_registered()->set_s3(tier != nullptr && !tier->state().bucket().empty());
  state.outbox().to_nodes.emplace_back(name, std::move(registered));

  const std::string restarted = "node " + Escape(name) + " was restarted while the job was on it";
  std::set<std::tuple<uint64_t, uint32_t, uint32_t>> listed;  // job, attempt, pod
  for (const v1::AttemptReport& report : request.attempts()) {
    listed.emplace(report.job(), report.attempt(), report.pod());
    if (rebooted && DiedWithItsHost(state, name, report)) {
      VRUN_TRY(state.PodGone(report.job(), report.pod(), Ending::kPodLost, restarted));
    }
    VRUN_TRY(state.Apply(name, report));
  }
  for (const auto& [id, pod] : state.PodsOn(name)) {
    const auto it = state.jobs().find(id);
    // The end of another job or pod may have ended its attempt.
    if (it == state.jobs().end() || pod >= it->second.pods.size() || IsOver(it->second.pods[pod].state)) continue;
    if (state.StartHeldBack(it->second)) continue;
    if (listed.contains({id, it->second.attempt, pod})) {
      VRUN_TRY(state.SendOrders(id, pod));
    } else if (rebooted) {
      VRUN_TRY(state.PodGone(id, pod, Ending::kPodLost, restarted));
    } else {
      VRUN_TRY(state.PodUnknown(id, pod));
    }
  }
  for (const auto& [id, pod] : state.PodsLeaving(name)) {
    const auto it = state.jobs().find(id);
    if (it != state.jobs().end() && !listed.contains({id, it->second.leaving.attempt, pod})) {
      VRUN_TRY(state.Left(id, pod));
    }
  }
  // Last, so that new jobs are placed according to the room left after the reports.
  VRUN_TRY(state.PutNode(row));
  // Homes still connect to the node's old address.
  if (moved) {
    for (const auto& pod : state.PodsOn(name)) state.outbox().pods.insert(pod);
  }
  Node& node = state.nodes().at(name);
  node.connected = true;
  node.last_heard = state.clock().Monotonic();
  LogInfo("node {} of pool {} has registered with {} attempts", Escape(name), Escape(row.pool),
          request.attempts_size());
  return state.Reconnected(name);
}

Status Heard(State& state, const std::string& name) {
  if (auto it = state.nodes().find(name); it != state.nodes().end()) it->second.last_heard = state.clock().Monotonic();
  return {};
}

}  // namespace vrun::control
