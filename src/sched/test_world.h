// SPDX-License-Identifier: Apache-2.0
// For tests: a world that executes actions and keeps its own books, so that what the core believes is checked against
// something that shares no code with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sched/core.h"
#include "sched/engine.h"

namespace vrun::sched::core {

inline NodeSpec GpuNode(const std::string& name, int gpus = 8, const std::string& rack = "") {
  NodeSpec n;
  n.name = name;
  n.pool = "local";
  n.gpu_type = "h100";
  n.gpus = gpus;
  n.milli_cpus = 64'000;
  n.memory_bytes = 64;
  n.rack = rack;
  return n;
}

inline JobSpec Gang(JobId id, int pods, int gpus) {
  JobSpec j;
  j.id = id;
  j.pool = "local";
  j.roles = {{"worker", pods, {gpus, 0, 1000, 1}}};
  return j;
}

inline std::string Text(const Action& action) {
  std::ostringstream out;
  if (const auto* p = std::get_if<Place>(&action)) {
    out << "place " << p->job << ' ' << p->gpu_type;
    for (const PodPlace& pod : p->pods) {
      out << ' ' << pod.role << '@' << pod.node << '/' << pod.gpus << '.' << int{pod.mig_start};
    }
  } else if (const auto* v = std::get_if<Preempt>(&action)) {
    out << "preempt " << v->job << " for " << v->beneficiary << ' ' << static_cast<int>(v->mode)
        << static_cast<int>(v->reason) << ' ' << v->terms.gain << ' ' << v->terms.price;
  } else if (const auto* h = std::get_if<Hold>(&action)) {
    out << "hold " << h->job << " at " << h->start;
    for (const std::string& n : h->nodes) out << ' ' << n;
  }
  return out.str();
}

class World {
 public:
  explicit World(Policy policy = {}) : state(policy) {}

  // One step; what is wrong with the actions is a failure of the test.
  std::vector<Action> Feed(std::vector<Event> events, Micros by = 0) {
    now += by;
    for (const Event& e : events) Note(e);
    std::vector<Action> actions = Step(state, events, now);
    for (const Action& a : actions) Execute(a);
    EXPECT_TRUE(state.core().Consistent());
    CheckLimits();
    return actions;
  }
  // Ticks until nothing is due within `span`.
  std::vector<Action> Run(Micros span) {
    std::vector<Action> all;
    for (Micros end = now + span; now < end;) {
      Micros next = std::min(NextWake(state), end);
      auto actions = Feed({Tick{}}, std::max<Micros>(next - now, 1));
      all.insert(all.end(), actions.begin(), actions.end());
    }
    return all;
  }

  bool Runs(JobId id) const { return running.contains(id); }

  State state;
  Micros now = 0;
  std::map<std::string, NodeSpec> nodes;  // up ones
  std::map<std::string, NodeSpec> known;
  std::map<JobId, JobSpec> jobs;
  std::map<JobId, std::vector<PodPlace>> running;  // holding room; also those told to stop
  std::set<JobId> stopping;
  std::map<std::string, TeamSpec> teams;
  int preemptions = 0;
  int holds = 0;

 private:
  void Note(const Event& event) {
    if (const auto* e = std::get_if<NodeUp>(&event)) nodes[e->node.name] = known[e->node.name] = e->node;
    if (const auto* e = std::get_if<NodeLost>(&event)) nodes.erase(e->name);
    if (const auto* e = std::get_if<NodeDrained>(&event)) nodes.erase(e->name);
    if (const auto* e = std::get_if<TeamSet>(&event)) teams[e->team.name] = e->team;
    if (const auto* e = std::get_if<JobSubmitted>(&event)) jobs[e->job.id] = e->job;
    if (const auto* e = std::get_if<JobStopped>(&event)) Gone(e->job);
    if (const auto* e = std::get_if<JobEnded>(&event)) {
      Gone(e->job);
      jobs.erase(e->job);
    }
  }
  void Gone(JobId id) {
    running.erase(id);
    stopping.erase(id);
  }

  void Execute(const Action& action) {
    if (std::holds_alternative<Hold>(action)) ++holds;
    if (const auto* v = std::get_if<Preempt>(&action)) {
      ++preemptions;
      EXPECT_TRUE(running.contains(v->job)) << Text(action);
      EXPECT_TRUE(stopping.insert(v->job).second) << Text(action);
      EXPECT_TRUE(jobs.at(v->job).preemptible) << Text(action);
      EXPECT_LE(jobs.at(v->job).klass, jobs.at(v->beneficiary).klass) << Text(action);
    }
    const auto* p = std::get_if<Place>(&action);
    if (p == nullptr) return;
    ASSERT_TRUE(jobs.contains(p->job)) << Text(action);
    ASSERT_FALSE(running.contains(p->job)) << Text(action);
    const JobSpec& job = jobs.at(p->job);
    running[p->job] = p->pods;
    // The gang is whole.
    std::vector<int32_t> pods(job.roles.size());
    std::set<std::string> places;
    for (const PodPlace& pod : p->pods) {
      ++pods.at(pod.role);
      ASSERT_TRUE(nodes.contains(pod.node)) << Text(action);
      const NodeSpec& n = nodes.at(pod.node);
      const Request& r = job.roles[pod.role].request;
      EXPECT_EQ(n.pool, job.pool);
      EXPECT_EQ(std::popcount(pod.gpus), r.gpus > 0 ? r.gpus : r.slice() ? 1 : 0);
      if (r.mig != 0) {
        EXPECT_NE(mig::At(mig::FindModel(n.mig_model), r.mig, pod.mig_start, 0), 0) << Text(action);
      }
      EXPECT_LT(uint64_t{pod.gpus}, uint64_t{1} << n.gpus);
      EXPECT_TRUE(job.gpu_types.empty() || r.total_milli() == 0 || n.gpu_type == p->gpu_type);
      for (const std::string& label : job.labels) {
        EXPECT_NE(std::find(n.labels.begin(), n.labels.end(), label), n.labels.end());
      }
      for (const std::string& taint : n.taints) {
        EXPECT_NE(std::find(job.tolerations.begin(), job.tolerations.end(), taint), job.tolerations.end());
      }
      if (job.required == Level::kNode) places.insert(n.name);
      if (job.required == Level::kRack) places.insert(n.zone + "/" + n.block + "/" + n.rack);
      if (job.required == Level::kBlock) places.insert(n.zone + "/" + n.block);
    }
    for (size_t i = 0; i < pods.size(); ++i) EXPECT_EQ(pods[i], job.roles[i].pods);
    EXPECT_LE(places.size(), 1u) << Text(action);
    for (JobId other : job.after) EXPECT_FALSE(jobs.contains(other));
    EXPECT_GE(now, job.begin_after);
    // And nothing is given twice.
    std::map<std::string, std::array<int64_t, kMaxGpus + 2>> used;
    std::map<std::pair<std::string, int>, std::pair<Sharing, int>> shared;  // by GPU: how, and slices taken
    for (const auto& [id, where] : running) {
      for (const PodPlace& pod : where) {
        const Request& r = jobs.at(id).roles[pod.role].request;
        auto& u = used[pod.node];
        for (int i = 0; i < kMaxGpus; ++i) {
          if ((pod.gpus >> i & 1) == 0) continue;
          u[i] += r.total_milli() - std::max(r.gpus - 1, 0) * kMilli;
          auto [it, first] = shared.try_emplace({pod.node, i}, r.kind(), 0);
          EXPECT_EQ(it->second.first, r.kind()) << Text(action);
          const int slices = mig::At(mig::FindModel(known.at(pod.node).mig_model), r.mig, pod.mig_start, 0);
          EXPECT_EQ(it->second.second & slices, 0) << Text(action);
          it->second.second |= slices;
        }
        u[kMaxGpus] += r.milli_cpus;
        u[kMaxGpus + 1] += r.memory_bytes;
      }
    }
    for (const PodPlace& pod : p->pods) {
      const auto& u = used[pod.node];
      for (int i = 0; i < kMaxGpus; ++i) EXPECT_LE(u[i], kMilli) << Text(action);
      EXPECT_LE(u[kMaxGpus], nodes.at(pod.node).milli_cpus) << Text(action);
      EXPECT_LE(u[kMaxGpus + 1], nodes.at(pod.node).memory_bytes) << Text(action);
    }
  }

  void CheckLimits() {
    for (const auto& [name, team] : teams) {
      for (const Quota& q : team.quotas) {
        int64_t used = 0;
        for (const auto& [id, where] : running) {
          std::string up = jobs.at(id).team;
          while (up != name && !up.empty()) up = teams.contains(up) ? teams.at(up).parent : "";
          if (up != name) continue;
          for (const PodPlace& pod : where) {
            bool counts = q.gpu_type.empty() || known.at(pod.node).gpu_type == q.gpu_type;
            if (counts) used += jobs.at(id).roles[pod.role].request.total_milli();
          }
        }
        EXPECT_LE(used, q.limit) << name;
      }
    }
  }
};

}  // namespace vrun::sched::core
