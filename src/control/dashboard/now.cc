// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/now.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <vector>

#include "control/dashboard/money_now.h"
#include "control/gpus/gpu_needs.h"
#include "control/ops/ops.h"
#include "sched/model/model.h"

namespace vrun::control {
namespace {

constexpr uint32_t kUnknownPercent = 255;
constexpr int kShownPreemptions = 30;
constexpr int kMostTeamUses = 1000;

// Thousandths of GPUs that the job asks for; slices of unknown size count nothing.
uint64_t MilliAsked(const JobRow& job) {
  const uint64_t one = static_cast<uint64_t>(job.needs.gpus) * 1000 + job.needs.gpu_milli;
  return one * PodsAsked(job);
}

uint64_t MilliHeld(State& state, const JobRow& job) {
  uint64_t milli = 0;
  for (const PodRow& pod : job.pods) {
    if (!HoldsRoom(pod)) continue;
    std::string model;
    const auto node = pod.mig_profile.empty() ? state.nodes().end() : state.nodes().find(pod.node);
    if (node != state.nodes().end()) model = state.FactsOf(node->second.row).mig_model();
    milli += uint64_t{MilliOf(pod, model)} * static_cast<uint64_t>(std::popcount(pod.gpu_mask));
  }
  return milli;
}

// How many jobs this row stands for in the queue.
uint64_t Waiting(const State& state, const JobRow& job) {
  if (job.elements == 0) return job.state == v1::PENDING ? 1 : 0;
  const Array* array = state.FindArray(job.id);
  return array != nullptr ? array->row.left.size() : 0;  // the others are jobs of their own
}

char LetterOf(const v1::GpuUser& user, v1::JobState state) {
  if (state == v1::STARTING) return 'h';
  if (!user.mig_profile().empty()) return 'm';
  return user.milli() < sched::core::kMilli ? 's' : 'u';
}

void FillCells(State& state, const v1::NodeInfo& node, v1::CellNode* out) {
  const size_t count = std::min<size_t>(node.total().gpus(), 32);
  const bool drains = node.state().starts_with("drain");
  const bool gone = node.state() == "lost" || node.state() == "away";
  std::string cells(count, gone ? 'l' : drains ? 'd' : 'f');
  std::vector<uint32_t> percent(count, kUnknownPercent);
  std::vector<uint64_t> users(count, 0);
  for (const v1::GpuUser& user : node.gpu_users()) {
    const size_t i = user.gpu();
    if (i >= count) continue;
    const auto job = state.jobs().find(user.job());
    const v1::JobState job_state = job == state.jobs().end() ? v1::RUNNING : job->second.state;
    cells[i] = LetterOf(user, job_state);
    users[i] = user.job();
    if (!user.has_usage()) continue;
    // Pods that share a GPU are measured one by one.
    const uint32_t before = percent[i] == kUnknownPercent ? 0 : percent[i];
    percent[i] = std::min<uint32_t>(100, before + user.usage().utilization_percent());
  }
  for (size_t i = 0; i < count; ++i) {
    const bool problem =
        i < static_cast<size_t>(node.facts().gpus_size()) && !node.facts().gpus(static_cast<int>(i)).problem().empty();
    if (problem || (node.facts().bad_gpus() >> i & 1) != 0) cells[i] = 'b';
  }
  out->set_cells(std::move(cells));
  for (const uint32_t one : percent) out->add_utilization_percent(one);
  for (const uint64_t one : users) out->add_users(one);
}

void AddNodes(State& state, const std::string& viewer, v1::ClusterNow* now) {
  const auto nodes = Nodes(state, {"home", viewer, ""}, {});
  if (!nodes) return;
  for (const v1::NodeInfo& node : nodes->nodes()) {
    v1::CellNode* out = now->add_nodes();
    out->set_name(node.name());
    out->set_pool(node.pool());
    out->set_state(node.state());
    out->set_reason(node.reason());
    const bool known = node.facts().gpus_size() > 0 && !node.facts().gpus(0).type().empty();
    out->set_gpu_type(known ? node.facts().gpus(0).type() : node.total().gpu_type());
    out->set_jobs(node.jobs());
    FillCells(state, node, out);
  }
}

void AddQueue(State& state, v1::ClusterNow* now) {
  std::map<std::pair<std::string, int>, v1::QueueRow> rows;
  uint64_t running = 0, waiting = 0;
  for (const auto& [id, job] : state.jobs()) {
    if (HoldsResources(job)) ++running;
    const uint64_t jobs = Waiting(state, job);
    if (jobs == 0) continue;
    waiting += jobs;
    const v1::JobClass of =
        job.scheduling.class_() == v1::JOB_CLASS_UNSPECIFIED ? v1::TRAINING : job.scheduling.class_();
    v1::QueueRow& row = rows[{job.pool, -static_cast<int>(of)}];
    row.set_pool(job.pool);
    row.set_class_(of);
    row.set_jobs(row.jobs() + jobs);
    row.set_gpu_milli(row.gpu_milli() + jobs * MilliAsked(job));
    if (row.oldest_us() == 0 || job.submitted_us < row.oldest_us()) row.set_oldest_us(job.submitted_us);
  }
  for (auto& [key, row] : rows) *now->add_queue() = std::move(row);
  now->set_running(running);
  now->set_waiting(waiting);
}

void AddPreemptions(State& state, const std::string& viewer, const Recent& recent, v1::ClusterNow* now) {
  for (const Recent::Preempted& preempted : recent.preempted()) {
    if (now->preemptions_size() == kShownPreemptions) return;
    v1::Preemption* out = now->add_preemptions();
    out->set_at_us(preempted.at_us);
    out->set_job(preempted.job);
    out->set_attempt(preempted.attempt);
    const auto job = state.Find(preempted.job);
    if (!job || !state.Shows(viewer, *job)) continue;
    out->set_reason(preempted.reason);
    out->set_user(job->user);
    out->set_team(job->scheduling.team());
    out->set_name(job->name);
  }
}

}  // namespace

v1::ClusterNow NowOf(State& state, const std::string& viewer, const Recent& recent, const History& history) {
  v1::ClusterNow now;
  now.set_at_us(state.clock().Wall());
  now.set_since_us(recent.since_us());
  AddNodes(state, viewer, &now);
  AddQueue(state, &now);
  AddPreemptions(state, viewer, recent, &now);
  history.AddCluster(&now);
  AddMoney(state, &now);
  history.AddLost(&now);
  AddFreeRoom(&now);
  return now;
}

v1::TeamUseList TeamUseOf(State& state, const std::string& viewer, const Recent& recent) {
  const auto shown = [&](const std::string& team) { return state.ShowsTeam(viewer, team); };
  std::map<std::pair<std::string, std::string>, v1::TeamUse> uses;
  for (const auto& [id, job] : state.jobs()) {
    const std::string& team = job.scheduling.team();
    if (!shown(team)) continue;
    const uint64_t waiting = Waiting(state, job);
    if (waiting == 0 && !HoldsResources(job)) continue;
    const std::string user = state.Shows(viewer, job) ? job.user : "";
    v1::TeamUse& use = uses[{team, user}];
    use.set_team(team);
    use.set_user(user);
    if (HoldsResources(job)) {
      use.set_running(use.running() + 1);
      use.set_gpu_milli(use.gpu_milli() + MilliHeld(state, job));
    }
    if (waiting == 0) continue;
    use.set_waiting(use.waiting() + waiting);
    use.set_waiting_milli(use.waiting_milli() + waiting * MilliAsked(job));
    if (use.oldest_us() == 0 || job.submitted_us < use.oldest_us()) use.set_oldest_us(job.submitted_us);
  }
  v1::TeamUseList list;
  list.set_since_us(recent.since_us());
  for (auto& [key, use] : uses) {
    if (list.uses_size() < kMostTeamUses) *list.add_uses() = std::move(use);
  }
  for (const auto& [team, waits] : recent.waits()) {
    if (!shown(team)) continue;
    std::vector<int64_t> sorted(waits.begin(), waits.end());
    std::sort(sorted.begin(), sorted.end());
    v1::TeamWait* wait = list.add_waits();
    wait->set_team(team);
    wait->set_starts(sorted.size());
    wait->set_median_us(sorted[sorted.size() / 2]);
    wait->set_p90_us(sorted[std::min(sorted.size() - 1, sorted.size() * 9 / 10)]);
  }
  return list;
}

}  // namespace vrun::control
