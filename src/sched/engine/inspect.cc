// SPDX-License-Identifier: Apache-2.0
#include "sched/engine/inspect.h"

#include <algorithm>
#include <bit>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

std::optional<JobView> InspectJob(const State& state, JobId id) {
  const Job* job = state.core().Find(id);
  if (job == nullptr) return std::nullopt;
  JobView view;
  switch (job->phase) {
    case Phase::kClaiming: view.phase = JobPhase::kClaiming; break;
    case Phase::kRunning: view.phase = JobPhase::kRunning; break;
    case Phase::kStopping: view.phase = JobPhase::kStopping; break;
    default: break;
  }
  view.started = job->started;
  view.expected = job->estimate.expected;
  view.learned = job->estimate.source <= 2 || job->estimate.source == 5;
  view.hold_start = job->hold.empty() ? 0 : job->hold_start;
  for (const NodeId n : job->hold) view.hold_nodes.push_back(state.core().cluster().node(n).spec.name);
  view.preemptions = job->preemptions;
  const bool runs = view.phase == JobPhase::kRunning || view.phase == JobPhase::kStopping;
  view.pods = runs ? job->placement.rooms.size() : 0;
  for (size_t i = 0; i < job->leaving.size(); ++i) {
    const Room& room = job->leaving[i];
    PodPlace& pod = view.leaving.emplace_back();
    pod.role = job->leaving_roles[i];
    pod.node = state.core().cluster().node(room.node).spec.name;
    pod.gpu_mask = room.mask();
    pod.mig_start = room.mig_start();
  }
  return view;
}

std::vector<JobId> Waiting(const State& state) { return state.core().Waiting(); }

std::vector<JobId> Core::Waiting() const {
  std::vector<JobId> ids;
  std::vector<uint8_t> seen(jobs_.size());
  auto add = [&](JobIndex j) {
    if (!seen[j]) ids.push_back(jobs_[j].spec.id);
    seen[j] = 1;
  };
  for (JobIndex j = 0; j < jobs_.size(); ++j) {
    if (jobs_[j].phase == Phase::kClaiming) add(j);
  }
  // order_ refers to pending_ as of the last pass. Newer entries are appended.
  for (const Ordered& o : order_) {
    const Pending& p = pending_[o.index];
    if (stamps_[p.job] == p.stamp) add(p.job);
  }
  const size_t ordered = ids.size();
  for (JobIndex j = 0; j < jobs_.size(); ++j) {
    if (jobs_[j].phase == Phase::kPending || jobs_[j].phase == Phase::kNotYet) add(j);
  }
  std::sort(ids.begin() + static_cast<int64_t>(ordered), ids.end());
  return ids;
}

std::vector<NodeRoom> Nodes(const State& state) {
  const Cluster& cluster = state.core().cluster();
  std::vector<NodeRoom> rooms;
  for (NodeId n = 0; n < cluster.size(); ++n) {
    const Cluster::Node& node = cluster.node(n);
    const int whole = std::popcount(node.whole & node.spec.usable_for(Sharing::kWhole));
    rooms.push_back(
        {&node.spec, node.up, node.held > 0, whole, node.free_cpus, node.free_memory, &node, node.mig_model});
  }
  return rooms;
}

std::vector<JobId> RunningOn(const State& state, const std::string& node) { return state.core().RunningOn(node); }

std::vector<JobId> Core::RunningOn(const std::string& node) const {
  std::vector<JobId> ids;
  const NodeId n = cluster_.Find(node);
  if (n == kNoNode || n >= on_node_.size()) return ids;
  for (JobIndex j : on_node_[n]) ids.push_back(jobs_[j].spec.id);
  return ids;
}

std::vector<TeamUse> TeamsInUse(const State& state) {
  const Teams& teams = state.core().teams();
  std::vector<TeamUse> out;
  for (TeamId t = 1; t < teams.size(); ++t) {
    TeamUse use{teams.name(t), teams.used(t), teams.pending(t), teams.fair(t), {}};
    for (const std::string& type : teams.TypeNames()) {
      if (int64_t used = teams.used(t, teams.KnownType(type)); used > 0) use.by_type.emplace_back(type, used);
    }
    out.push_back(std::move(use));
  }
  return out;
}

}  // namespace vrun::sched::core
