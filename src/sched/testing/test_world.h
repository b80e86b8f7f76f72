// SPDX-License-Identifier: Apache-2.0
// For tests: a simulated cluster that executes actions and keeps its own books. It shares no code with the core, so it
// can check what the core believes.
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
#include "sched/engine/engine.h"
#include "sched/model/fit.h"

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
      out << ' ' << pod.role << '@' << pod.node << '/' << pod.gpu_mask << '.' << int{pod.mig_start};
    }
  } else if (const auto* v = std::get_if<Preempt>(&action)) {
    out << "preempt " << v->job << " for " << v->beneficiary << ' ' << static_cast<int>(v->mode)
        << static_cast<int>(v->reason) << ' ' << v->terms.gain << ' ' << v->terms.price;
  } else if (const auto* h = std::get_if<Hold>(&action)) {
    out << "hold " << h->job << " at " << h->start;
    for (const std::string& n : h->nodes) out << ' ' << n;
  } else if (const auto* r = std::get_if<Resize>(&action)) {
    out << (r->grow ? "grow " : "shrink ") << r->job << " for " << r->beneficiary;
    for (const PodPlace& pod : r->pods) out << ' ' << pod.role << '@' << pod.node << '/' << pod.gpu_mask;
  } else if (const auto* a = std::get_if<Admission>(&action)) {
    out << "admission " << a->job << ' ' << a->met << ' ' << a->start << ' ' << a->end;
  } else if (const auto* d = std::get_if<Doomed>(&action)) {
    out << "doomed " << d->job << " by " << d->dependency;
  }
  return out.str();
}

class World {
 public:
  explicit World(Policy policy = {}) : state(policy) {}

  // Runs one step. Wrong actions fail the test.
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
  std::map<std::string, NodeSpec> nodes;  // nodes that are up
  std::map<std::string, NodeSpec> known;
  std::map<JobId, JobSpec> jobs;
  std::map<JobId, std::vector<PodPlace>> running;  // jobs with room, including those told to stop
  std::set<JobId> stopping;
  std::set<JobId> doomed;                            // depend on a job that did not succeed
  std::map<JobId, std::vector<PodPlace>> shrinking;  // pods told to leave
  std::map<std::string, TeamSpec> teams;
  std::map<std::string, Maintenance> windows;
  int preemptions = 0;
  int holds = 0;

 private:
  void Note(const Event& event) {
    if (const auto* e = std::get_if<NodeUp>(&event)) nodes[e->node.name] = known[e->node.name] = e->node;
    if (const auto* e = std::get_if<NodeLost>(&event)) nodes.erase(e->name);
    if (const auto* e = std::get_if<NodeDrained>(&event)) nodes.erase(e->name);
    if (const auto* e = std::get_if<MaintenanceSet>(&event)) windows[e->window.name] = e->window;
    if (const auto* e = std::get_if<MaintenanceOver>(&event)) windows.erase(e->name);
    if (const auto* e = std::get_if<TeamSet>(&event)) teams[e->team.name] = e->team;
    if (const auto* e = std::get_if<JobSubmitted>(&event); e != nullptr && Validate(e->job)) jobs[e->job.id] = e->job;
    if (const auto* e = std::get_if<JobStopped>(&event)) Gone(e->job);
    if (const auto* e = std::get_if<JobResized>(&event)) Shrunk(e->job);
    if (const auto* e = std::get_if<PodsGone>(&event); e != nullptr && !stopping.contains(e->job)) {
      std::vector<PodPlace>& pods = running.at(e->job);
      for (const PodPlace& pod : e->pods) pods.erase(std::find(pods.begin(), pods.end(), pod));
    }
    if (const auto* e = std::get_if<JobEnded>(&event)) {
      Gone(e->job);
      jobs.erase(e->job);
      for (const auto& [id, job] : jobs) {
        const bool after = std::find(job.after_ok.begin(), job.after_ok.end(), e->job) != job.after_ok.end();
        if (after && (!e->completed || !e->succeeded)) doomed.insert(id);
      }
    }
  }
  void Shrunk(JobId id) {
    for (const PodPlace& pod : shrinking[id]) {
      auto& pods = running.at(id);
      auto it = std::find(pods.begin(), pods.end(), pod);
      ASSERT_NE(it, pods.end());
      pods.erase(it);
    }
    shrinking.erase(id);
  }
  void Gone(JobId id) {
    shrinking.erase(id);
    running.erase(id);
    stopping.erase(id);
  }

  void Execute(const Action& action) {
    if (std::holds_alternative<Hold>(action)) ++holds;
    if (const auto* v = std::get_if<Preempt>(&action)) {
      ++preemptions;
      EXPECT_TRUE(running.contains(v->job)) << Text(action);
      EXPECT_TRUE(stopping.insert(v->job).second) << Text(action);
      EXPECT_TRUE(jobs.at(v->job).preemptible || jobs.at(v->job).may_meet_maintenance) << Text(action);
      if (v->beneficiary != 0) {
        EXPECT_LE(jobs.at(v->job).klass, jobs.at(v->beneficiary).klass) << Text(action);
      }
    }
    if (const auto* r = std::get_if<Resize>(&action); r != nullptr) {
      ASSERT_TRUE(running.contains(r->job)) << Text(action);
      ASSERT_FALSE(shrinking.contains(r->job)) << Text(action);
      std::vector<PodPlace>& pods = running.at(r->job);
      if (r->grow) {
        pods.insert(pods.end(), r->pods.begin(), r->pods.end());
        CheckPods(jobs.at(r->job), pods, r->pods, Text(action));
      } else {
        shrinking[r->job] = r->pods;
        EXPECT_GE(pods.size() - r->pods.size(), LeastPods(jobs.at(r->job))) << Text(action);
        EXPECT_LE(jobs.at(r->job).klass, jobs.at(r->beneficiary).klass) << Text(action);
      }
      return;
    }
    const auto* p = std::get_if<Place>(&action);
    if (p == nullptr) return;
    ASSERT_TRUE(jobs.contains(p->job)) << Text(action);
    ASSERT_FALSE(running.contains(p->job)) << Text(action);
    const JobSpec& job = jobs.at(p->job);
    running[p->job] = p->pods;
    for (const PodPlace& pod : p->pods) {
      EXPECT_TRUE(job.gpu_types.empty() || job.roles.at(pod.role).request.total_milli() == 0 ||
                  nodes.at(pod.node).gpu_type == p->gpu_type);
    }
    for (JobId other : job.after) EXPECT_FALSE(jobs.contains(other));
    for (JobId other : job.after_ok) EXPECT_FALSE(jobs.contains(other));
    EXPECT_FALSE(doomed.contains(p->job)) << Text(action);
    EXPECT_GE(now, job.begin_after);
    CheckPods(job, p->pods, p->pods, Text(action));
  }

  static size_t LeastPods(const JobSpec& job) {
    size_t pods = 0;
    for (const Role& r : job.roles) pods += static_cast<size_t>(r.least());
    return pods;
  }

  // Checks `all` pods of a gang, of which `where` are new.
  void CheckPods(const JobSpec& job, const std::vector<PodPlace>& all, const std::vector<PodPlace>& where,
                 const std::string& text) {
    // The gang is complete.
    std::vector<int32_t> pods(job.roles.size());
    std::map<std::pair<int32_t, std::string>, int32_t> blocks;
    std::set<std::string> places;
    for (const PodPlace& pod : all) {
      ++pods.at(pod.role);
      const Role& role = job.roles[pod.role];
      const NodeSpec& n = known.at(pod.node);
      if (role.segment_level == Level::kRack) ++blocks[{pod.role, n.zone + "/" + n.block + "/" + n.rack}];
      if (role.segment_level == Level::kNode) ++blocks[{pod.role, n.name}];
      if (job.required == Level::kNode) places.insert(n.name);
      if (job.required == Level::kRack) places.insert(n.zone + "/" + n.block + "/" + n.rack);
      if (job.required == Level::kBlock) places.insert(n.zone + "/" + n.block);
    }
    for (const PodPlace& pod : where) {
      ASSERT_TRUE(nodes.contains(pod.node)) << text;
      const NodeSpec& n = nodes.at(pod.node);
      const Request r = Given(job.roles[pod.role].request, pod);
      CheckKind(r, n, pod, text);
      EXPECT_EQ(n.pool, job.pool);
      EXPECT_EQ(std::popcount(pod.gpu_mask), r.gpus > 0 ? r.gpus : r.slice() ? 1 : 0);
      if (r.mig != 0) {
        EXPECT_NE(mig::At(mig::FindModel(n.mig_model), r.mig, pod.mig_start, 0), 0) << text;
      }
      EXPECT_LT(uint64_t{pod.gpu_mask}, uint64_t{1} << n.gpus);
      EXPECT_EQ(pod.gpu_mask & n.bad_gpus, 0u) << text;
      for (const auto& [name, w] : windows) {
        if (std::find(w.nodes.begin(), w.nodes.end(), n.name) == w.nodes.end() || now >= w.until) continue;
        EXPECT_LT(now, w.from) << text;
        if (!job.preemptible && !job.may_meet_maintenance) {
          EXPECT_GT(job.limit, 0) << text;
          EXPECT_LE(now + job.limit, w.from) << text;
        }
      }
      for (const std::string& label : job.labels) {
        EXPECT_NE(std::find(n.labels.begin(), n.labels.end(), label), n.labels.end());
      }
      for (const std::string& taint : n.taints) {
        EXPECT_NE(std::find(job.tolerations.begin(), job.tolerations.end(), taint), job.tolerations.end());
      }
    }
    for (size_t i = 0; i < pods.size(); ++i) {
      EXPECT_LE(pods[i], job.roles[i].pods) << text;
      EXPECT_GE(pods[i], job.roles[i].least()) << text;
      EXPECT_EQ(pods[i] % job.roles[i].block(), 0) << text;
    }
    for (const auto& [block, count] : blocks) EXPECT_EQ(count % job.roles[block.first].block(), 0) << text;
    EXPECT_LE(places.size(), 1u) << text;
    // Nothing is given twice.
    std::map<std::string, std::array<int64_t, kMaxGpus + 3>> used;
    std::map<std::pair<std::string, int>, std::pair<Sharing, int>> shared;  // by GPU: mode and slices taken
    std::map<std::pair<std::string, int>, uint64_t> sharers;
    for (const auto& [id, where] : running) {
      for (const PodPlace& pod : where) {
        const Request r = Given(jobs.at(id).roles[pod.role].request, pod);
        auto& u = used[pod.node];
        for (int i = 0; i < kMaxGpus; ++i) {
          if ((pod.gpu_mask >> i & 1) == 0) continue;
          u[i] += r.total_milli() - std::max(r.gpus - 1, 0) * kMilli;
          auto [it, first] = shared.try_emplace({pod.node, i}, r.kind(), 0);
          EXPECT_EQ(it->second.first, r.kind()) << text;
          EXPECT_EQ(sharers.try_emplace({pod.node, i}, r.sharers).first->second, r.sharers) << text;
          const int slices = mig::At(mig::FindModel(known.at(pod.node).mig_model), r.mig, pod.mig_start, 0);
          EXPECT_EQ(it->second.second & slices, 0) << text;
          it->second.second |= slices;
        }
        u[kMaxGpus] += r.milli_cpus;
        u[kMaxGpus + 1] += r.memory_bytes;
        u[kMaxGpus + 2] += r.nics;
      }
    }
    for (const PodPlace& pod : where) {
      const auto& u = used[pod.node];
      for (int i = 0; i < kMaxGpus; ++i) EXPECT_LE(u[i], kMilli) << text;
      EXPECT_LE(u[kMaxGpus], nodes.at(pod.node).milli_cpus) << text;
      EXPECT_LE(u[kMaxGpus + 1], nodes.at(pod.node).memory_bytes) << text;
      EXPECT_LE(u[kMaxGpus + 2], nodes.at(pod.node).nics) << text;
    }
  }

  // The request with its kind decided.
  static Request Given(Request r, const PodPlace& pod) {
    if (!r.open()) return r;
    r.gpu_milli = pod.gpu_milli;
    r.mig = pod.mig;
    if (r.gpu_milli == 0) r.sharers = 0;
    if (r.gpu_milli == 0 && r.mig == 0) r.gpus = 1;
    return r;
  }

  // The pod's GPUs may be given in this way and have the memory.
  static void CheckKind(const Request& r, const NodeSpec& n, const PodPlace& pod, const std::string& text) {
    EXPECT_EQ(pod.gpu_mask & ~n.usable_for(r.kind()), 0u) << text;
    EXPECT_EQ(pod.gpu_milli, r.gpu_milli) << text;
    EXPECT_EQ(pod.mig, r.mig) << text;
    if (r.gpu_memory == 0) return;
    const int64_t gpu = NominalGpuMemory(n);
    const int64_t has = r.mig != 0        ? mig::NominalMemory(r.mig) * kGiB
                        : r.gpu_milli > 0 ? gpu * r.gpu_milli / kMilli
                                          : gpu;
    EXPECT_GE(has, r.gpu_memory) << text;
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
            if (counts) used += Given(jobs.at(id).roles[pod.role].request, pod).total_milli();
          }
        }
        EXPECT_LE(used, q.limit) << name;
      }
    }
  }
};

}  // namespace vrun::sched::core
