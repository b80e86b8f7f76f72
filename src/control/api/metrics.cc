// SPDX-License-Identifier: Apache-2.0
#include "control/api/metrics.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <vector>

#include "control/ops/ops.h"
#include "http/metrics_page.h"
#include "telemetry/figures.h"

namespace vrun::control {
namespace {

using Page = http::MetricsPage;

std::string LowerState(v1::JobState state) {
  std::string name = v1::JobState_Name(state);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return name;
}

template <size_t kBounds>
void Of(const Histogram<kBounds>& histogram, Page* page) {
  page->Distribution(histogram.bounds.data(), histogram.counts.data(), kBounds, histogram.sum);
}

void Jobs(const State& state, const Counters& counters, const std::string& viewer, Page* page) {
  std::map<std::tuple<v1::JobState, std::string, std::string>, int> jobs;
  std::map<std::string, int> queue;
  for (const std::string& pool : state.Pools()) queue[pool] = 0;
  for (const auto& [id, job] : state.jobs()) {
    if (job.elements != 0) continue;  // an array never runs itself
    // As in `vctl teams`: of other teams only what all of them have together.
    const std::string& team = job.scheduling.team();
    ++jobs[{job.state, job.pool, state.ShowsTeam(viewer, team) ? team : ""}];
    if (job.state == v1::PENDING) ++queue[job.pool];
  }
  page->Head("vrun_jobs", "gauge", "Jobs that have not ended.");
  for (const auto& [key, count] : jobs) {
    const auto& [job_state, pool, team] = key;
    page->Value({{"state", LowerState(job_state)}, {"pool", pool}, {"team", team}}, count);
  }
  page->Head("vrun_queue_jobs", "gauge", "Jobs that wait.");
  for (const auto& [pool, count] : queue) page->Value({{"pool", pool}}, count);
  page->Head("vrun_jobs_submitted_total", "counter",
             "Jobs that were submitted; elements of arrays as they near their start.");
  page->Value({}, static_cast<double>(counters.submitted()));
  page->Head("vrun_jobs_ended_total", "counter", "Jobs that have ended.");
  for (const v1::JobState end : {v1::COMPLETED, v1::FAILED, v1::CANCELLED, v1::TIMEOUT, v1::OUT_OF_MEMORY}) {
    const auto count = counters.ended().find(end);
    page->Value({{"state", LowerState(end)}}, count == counters.ended().end() ? 0 : static_cast<double>(count->second));
  }
  page->Head("vrun_preemptions_total", "counter", "Jobs that were stopped to make room for others.");
  page->Value({}, static_cast<double>(counters.preempted()));
  page->Head("vrun_job_wait_seconds", "histogram", "Time from a submission to the first placement.");
  Of(counters.waits(), page);
  page->Head("vrun_sched_cycle_seconds", "histogram", "Time of a pass of the scheduler.");
  Of(counters.passes(), page);
}

struct GpuCount {
  double total = 0, allocated = 0, bad = 0;
};

void NodesAndGpus(State& state, Page* page) {
  const auto reply = Nodes(state, {}, {});
  if (!reply) return;
  std::map<std::pair<std::string, std::string>, int> nodes;
  std::map<std::pair<std::string, std::string>, GpuCount> gpus;
  for (const v1::NodeInfo& node : reply->nodes()) {
    ++nodes[{node.pool(), node.state()}];
    if (node.total().gpus() == 0 || node.state() == "lost") continue;
    GpuCount& count = gpus[{node.pool(), node.total().gpu_type()}];
    count.total += node.total().gpus();
    count.allocated += node.used().gpus() + node.used().gpu_milli() / 1000.0;
    count.bad += std::popcount(node.facts().bad_gpus());
  }
  page->Head("vrun_nodes", "gauge", "Nodes by state.");
  for (const auto& [key, count] : nodes) page->Value({{"pool", key.first}, {"state", key.second}}, count);
  page->Head("vrun_node_state", "gauge", "1 for the state in which the node is.");
  for (const v1::NodeInfo& node : reply->nodes()) {
    page->Value({{"node", node.name()}, {"pool", node.pool()}, {"state", node.state()}}, 1);
  }
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    page->Head(name, "gauge", help);
    for (const auto& [key, count] : gpus) page->Value({{"pool", key.first}, {"type", key.second}}, value(count));
  };
  each("vrun_gpus", "GPUs of nodes that are not lost.", [](const GpuCount& c) { return c.total; });
  each("vrun_gpus_allocated", "GPUs that jobs have; a part of a GPU counts as that part.",
       [](const GpuCount& c) { return c.allocated; });
  each("vrun_gpus_free", "GPUs that no job has and that are not bad.",
       [](const GpuCount& c) { return std::max(c.total - c.allocated - c.bad, 0.0); });
  each("vrun_gpus_bad", "GPUs that no job gets.", [](const GpuCount& c) { return c.bad; });
}

void Quotas(State& state, const std::string& viewer, Page* page) {
  const auto teams = Teams(state, {"home", viewer, ""}, {});
  if (!teams) return;
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    page->Head(name, "gauge", help);
    for (const v1::TeamInfo& team : teams->teams()) {
      for (const v1::TeamQuota& quota : team.quotas()) {
        const int64_t milli = value(quota);
        if (milli >= 0)
          page->Value({{"team", team.name()}, {"type", quota.gpu_type()}}, static_cast<double>(milli) / 1000);
      }
    }
  };
  each("vrun_quota_gpu_guarantee", "GPUs that the team is guaranteed; without a type, of all types together.",
       [](const v1::TeamQuota& q) { return q.guarantee_milli(); });
  each("vrun_quota_gpu_limit", "GPUs that the team may have at most; absent: no limit.",
       [](const v1::TeamQuota& q) { return q.limit_milli(); });
  each("vrun_quota_gpu_used", "GPUs that the team has.", [](const v1::TeamQuota& q) { return q.used_milli(); });
  each("vrun_quota_gpu_borrowed", "GPUs that the team has above its guarantee.",
       [](const v1::TeamQuota& q) { return std::max<int64_t>(q.used_milli() - q.guarantee_milli(), 0); });
  page->Head("vrun_team_gpus_waiting", "gauge", "GPUs that the team's waiting jobs ask for.");
  for (const v1::TeamInfo& team : teams->teams()) {
    page->Value({{"team", team.name()}}, static_cast<double>(team.waiting_milli()) / 1000);
  }
}

void Notifications(const State& state, const Counters& counters, Page* page) {
  page->Head("vrun_notifications_total", "counter", "Mails and webhooks that were sent, or given up.");
  for (const bool mail : {true, false}) {
    for (const bool sent : {true, false}) {
      page->Value({{"kind", mail ? "mail" : "webhook"}, {"result", sent ? "sent" : "failed"}},
                  static_cast<double>(counters.deliveries(mail, sent)));
    }
  }
  page->Head("vrun_notifications_queued", "gauge", "Mails and webhooks that wait for their delivery.");
  page->Value({}, static_cast<double>(state.messages()));
  page->Head("vrun_notifications_dropped_total", "counter", "Mails and webhooks that were not made: too many waited.");
  page->Value({}, static_cast<double>(state.messages_refused()));
}

}  // namespace

std::string MetricsText(State& state, const Counters& counters, const std::string& viewer) {
  Page page;
  page.Head("vrun_build_info", "gauge", "The version of the controller.");
  page.Value({{"version", VRUN_VERSION}}, 1);
  Jobs(state, counters, viewer, &page);
  NodesAndGpus(state, &page);
  Quotas(state, viewer, &page);
  Notifications(state, counters, &page);
  telemetry::AddFigures(&page);
  return page.Take();
}

}  // namespace vrun::control
