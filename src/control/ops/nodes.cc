// SPDX-License-Identifier: Apache-2.0
// Nodes: the nodes that have joined, and their usage; by whom as the policy of visibility says.
#include <algorithm>
#include <bit>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "base/escape.h"
#include "control/gpus/gpu_needs.h"
#include "control/ops/ops.h"
#include "control/tier/content_tier.h"

namespace vrun::control {
namespace {

// "away": its stream is closed, but its lease has not expired yet. "drained": it drains, and its last job has ended.
const char* StateName(const Node& node, uint32_t jobs) {
  if (node.row.lost) return "lost";
  if (!node.connected) return "away";
  if (!Drains(node.row)) return "ready";
  return jobs > 0 ? "draining" : "drained";
}

std::string ReasonOf(const State& state, const NodeRow& node, int64_t wall) {
  const v1::NodeHealth health = HealthOf(node);
  std::string own = health.drain();
  if (!health.ignored().empty()) own += (own.empty() ? "" : "; ") + health.ignored();
  if (node.draining || !node.reason.empty()) return node.reason + (own.empty() ? "" : "; " + own);
  if (!own.empty()) return own;
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
  std::vector<v1::GpuUser> users;
};

// One entry for each GPU that the pod has, or has a part of.
void AddUsers(bool shown, const JobRow& job, const PodRow& pod, const v1::NodeFacts& facts, Use* use) {
  for (uint32_t mask = pod.gpu_mask; mask != 0; mask &= mask - 1) {
    v1::GpuUser& user = use->users.emplace_back();
    user.set_gpu(static_cast<uint32_t>(std::countr_zero(mask)));
    user.set_job(job.id);
    user.set_pod(pod.pod);
    if (shown) {
      user.set_user(job.user);
      user.set_team(job.scheduling.team());
      user.set_name(job.name);
      if (!pod.usage.empty()) (void)user.mutable_usage()->ParseFromString(pod.usage);
    }
    user.set_milli(MilliOf(pod, facts.mig_model()));
    if (pod.gpu_milli > 0) user.set_sharing(GpusOfPod(job.needs, pod).gpu_sharing());
    user.set_mig_profile(pod.mig_profile);
    if (pod.mig_start >= 0) user.set_mig_start(static_cast<uint32_t>(pod.mig_start));
    const uint32_t milli = user.milli();
    milli == sched::core::kMilli ? ++use->needs.gpus : use->needs.gpu_milli += milli;
  }
}

std::map<std::string, Use> UsedByNode(State& state, const std::string& viewer) {
  std::map<std::string, Use> used;
  std::map<std::string, v1::NodeFacts> facts;
  for (const auto& [id, job] : state.jobs()) {
    if (!HoldsResources(job)) continue;
    std::set<std::string> nodes;
    const bool shown = state.Shows(viewer, job);
    for (const PodRow& pod : job.pods) {
      if (!HoldsRoom(pod)) continue;
      Use& use = used[pod.node];
      if (nodes.insert(pod.node).second) ++use.jobs;
      use.needs.milli_cpus += job.needs.milli_cpus;
      use.needs.memory_bytes += job.needs.memory_bytes;
      if (pod.gpu_mask == 0) {
        use.needs.gpus += job.needs.gpus;  // placed by an old version
        continue;
      }
      const auto node = state.nodes().find(pod.node);
      const auto [it, fresh] = facts.try_emplace(pod.node);
      if (fresh && node != state.nodes().end()) it->second = state.FactsOf(node->second.row);
      AddUsers(shown, job, pod, it->second, &use);
    }
  }
  return used;
}

}  // namespace

Result<v1::NodesReply> Nodes(State& state, const rpc::Peer& peer, const v1::NodesRequest&) {
  v1::NodesReply reply;
  const int64_t now = state.clock().Monotonic();
  const int64_t wall = state.clock().Wall();
  std::map<std::string, Use> used = UsedByNode(state, peer.name);
  for (const auto& [name, node] : state.nodes()) {
    v1::NodeInfo* info = reply.add_nodes();
    info->set_name(name);
    info->set_pool(node.row.pool);
    (void)info->mutable_total()->ParseFromString(node.row.total);
    Use& use = used[name];
    use.needs.gpu_type = info->total().gpu_type();
    *info->mutable_used() = ToProto(use.needs);
    info->set_jobs(use.jobs);
    std::stable_sort(use.users.begin(), use.users.end(), [](const v1::GpuUser& a, const v1::GpuUser& b) {
      return std::tuple(a.gpu(), a.mig_start(), a.job(), a.pod()) <
             std::tuple(b.gpu(), b.mig_start(), b.job(), b.pod());
    });
    for (v1::GpuUser& user : use.users) *info->add_gpu_users() = std::move(user);
    info->set_state(StateName(node, use.jobs));
    info->set_reason(ReasonOf(state, node.row, wall));
    *info->mutable_facts() = state.FactsOf(node.row);
    info->mutable_facts()->set_bad_gpus(info->facts().bad_gpus() | HealthOf(node.row).bad_gpus());
    for (const std::string& a : node.row.addresses) info->add_addresses(a);
    info->set_last_seen_us(node.connected ? wall - (now - node.last_heard) : node.row.last_seen_us);
    info->set_version(node.row.version);
  }
  if (const ContentTier* tier = state.settings().tier) *reply.mutable_s3() = tier->state();
  return reply;
}

}  // namespace vrun::control
