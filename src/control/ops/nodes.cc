// SPDX-License-Identifier: Apache-2.0
// Nodes: the nodes that have joined, and their usage.
#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "control/ops/ops.h"
#include "control/tier/content_tier.h"

namespace vrun::control {
namespace {

// "away": its stream is closed, but its lease has not expired yet. "drained": it drains, and its last job has ended.
const char* StateName(const Node& node, uint32_t jobs) {
  if (node.row.lost) return "lost";
  if (!node.connected) return "away";
  if (!node.row.draining) return "ready";
  return jobs > 0 ? "draining" : "drained";
}

std::string ReasonOf(const State& state, const NodeRow& node, int64_t wall) {
  if (node.draining || !node.reason.empty()) return node.reason;
  if (node.lost) return "no message since " + FormatRfc3339(node.last_seen_us);
  for (const auto& [name, window] : state.maintenance()) {
    if (wall >= window.until_us || std::find(window.nodes.begin(), window.nodes.end(), node.name) == window.nodes.end())
      continue;
    return "maintenance " + Escape(name) + " from " + FormatRfc3339(window.from_us) + " until " +
           FormatRfc3339(window.until_us);
  }
  return "";
}

struct Use {
  Needs needs;
  uint32_t jobs = 0;
};

std::map<std::string, Use> UsedByNode(const State& state) {
  std::map<std::string, Use> used;
  for (const auto& [id, job] : state.jobs()) {
    if (!HoldsResources(job)) continue;
    std::set<std::string> nodes;
    for (const PodRow& pod : job.pods) {
      if (!HoldsRoom(pod)) continue;
      Use& use = used[pod.node];
      if (nodes.insert(pod.node).second) ++use.jobs;
      use.needs.milli_cpus += job.needs.milli_cpus;
      use.needs.memory_bytes += job.needs.memory_bytes;
      use.needs.gpus += job.needs.gpus;
    }
  }
  return used;
}

}  // namespace

Result<v1::NodesReply> Nodes(State& state, const rpc::Peer&, const v1::NodesRequest&) {
  v1::NodesReply reply;
  const int64_t now = state.clock().Monotonic();
  const int64_t wall = state.clock().Wall();
  std::map<std::string, Use> used = UsedByNode(state);
  for (const auto& [name, node] : state.nodes()) {
    v1::NodeInfo* info = reply.add_nodes();
    info->set_name(name);
    info->set_pool(node.row.pool);
    (void)info->mutable_total()->ParseFromString(node.row.total);
    Use& use = used[name];
    use.needs.gpu_type = info->total().gpu_type();
    *info->mutable_used() = ToProto(use.needs);
    info->set_jobs(use.jobs);
    info->set_state(StateName(node, use.jobs));
    info->set_reason(ReasonOf(state, node.row, wall));
    *info->mutable_facts() = state.FactsOf(node.row);
    for (const std::string& a : node.row.addresses) info->add_addresses(a);
    info->set_last_seen_us(node.connected ? wall - (now - node.last_heard) : node.row.last_seen_us);
    info->set_version(node.row.version);
  }
  if (const ContentTier* tier = state.settings().tier) *reply.mutable_s3() = tier->state();
  return reply;
}

}  // namespace vrun::control
