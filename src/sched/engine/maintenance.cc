// SPDX-License-Identifier: Apache-2.0
// Clears the nodes ahead of a maintenance window. Jobs that may be told to leave are told as late as their save allows.
// Other jobs were admitted only because they end before the window, or they run on until they end.
#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

// How long a job stays wherever it starts: 0 when it may be told to leave. Rounded up to half octaves, since each
// length is a separate shape.
Micros Core::RunsOf(const JobSpec& spec) {
  if (spec.preemptible || spec.may_meet_maintenance) return 0;
  if (spec.limit == 0) return kNever;
  Micros up = kSecond;
  while (up < spec.limit) up += up / 2;
  return up;
}

// Whether the job would run into a window where it is to start now.
bool Core::OutstaysWindow(const Job& job) const {
  if (job.spec.preemptible || job.spec.may_meet_maintenance) return false;
  return std::any_of(job.placement.rooms.begin(), job.placement.rooms.end(), [&](const Room& r) {
    const Micros horizon = cluster_.node(r.node).horizon;
    return horizon != kNever && (job.spec.limit == 0 || job.spec.limit > horizon - now_);
  });
}

// Lengths matter only once a window was announced. Before, they would only double the number of shapes.
ShapeId Core::ShapeOf(const JobSpec& spec, const Request& request, const std::string& gpu_type) {
  // Pods without GPUs may go anywhere in the pool.
  return cluster_.Shape(request, {spec.pool, request.total_milli() > 0 ? gpu_type : "", spec.labels, spec.tolerations,
                                  heeds_windows_ ? RunsOf(spec) : 0, spec.nodes, spec.excluded});
}

void Core::HeedWindows() {
  if (heeds_windows_) return;
  heeds_windows_ = true;
  for (DemandState& state : demands_) {
    if (state.references == 0) continue;
    for (Demand::Alternative& a : state.demand.alternatives) {
      for (size_t i = 0; i < a.shapes.size(); ++i) {
        const ShapeId old = a.shapes[i];
        a.shapes[i] = ShapeOf(state.like, state.demand.parts[i].request, a.gpu_type);
        cluster_.Drop(old);
      }
    }
  }
}

void Core::On(const MaintenanceSet& e) {
  if (!Validate(e.window)) return;
  HeedWindows();
  Reopen();  // the window may have been announced for other nodes before
  windows_.Set(e.window);
  LimitNodes();
  // Jobs that were to start there may now run into it.
  for (const std::string& name : e.window.nodes) NobodyStartsOn(cluster_.Name(name));
}

void Core::On(const MaintenanceOver& e) {
  Reopen();
  windows_.End(e.name);
  LimitNodes();
}

// Lifts all limits. LimitNodes must then apply the remaining windows at once, because the next event may start a job.
void Core::Reopen() {
  for (const std::string& name : windows_.Nodes()) {
    if (NodeId n = cluster_.Find(name); n != kNoNode) cluster_.Limit(n, kNever, false, now_);
  }
  maintenance_due_ = 0;
  dirty_ = true;
}

void Core::LimitNodes() {
  for (const std::string& name : windows_.Nodes()) {
    const NodeId n = cluster_.Name(name);
    const Windows::State state = windows_.At(name, now_, policy_.maintenance_lead);
    const bool closes = state.closed && !cluster_.node(n).closed;
    dirty_ = dirty_ || (!state.closed && cluster_.node(n).closed);
    cluster_.Limit(n, state.begins, state.closed, now_);
    if (closes) NobodyStartsOn(n);
  }
}

// When the job must be told to leave a node that will be closed. kNever: it stays to its end.
Micros Core::TellBefore(JobIndex j, Micros begins) const {
  const JobSpec& spec = jobs_[j].spec;
  if (begins == kNever || !(spec.preemptible || spec.may_meet_maintenance)) return kNever;
  // Not before its node is closed, because it would start there again.
  return begins - std::max(PriceOf(j).latency, std::min(spec.notice, policy_.maintenance_lead));
}

void Core::ServeMaintenance() {
  if (now_ < maintenance_due_ && now_ - maintained_ < Cluster::kLimitEvery) return;
  maintained_ = now_;
  LimitNodes();
  for (const std::string& name : windows_.Nodes()) {
    const NodeId n = cluster_.Name(name);
    const Windows::State state = windows_.At(name, now_, policy_.maintenance_lead);
    if (!state.closed) continue;
    for (JobIndex j : std::vector<JobIndex>(on_node_[n])) {
      if (now_ >= TellBefore(j, state.begins)) {
        TellToLeave(j, StopReason::kMaintenance);
      }
    }
  }
  windows_.Expire(now_);
  maintenance_due_ = NextMaintenance();
}

Micros Core::NextMaintenance() const {
  Micros next = windows_.Next(now_, policy_.maintenance_lead);
  for (const std::string& name : windows_.Nodes()) {
    const NodeId n = cluster_.Find(name);
    if (n == kNoNode || !cluster_.node(n).closed || n >= on_node_.size()) continue;
    for (JobIndex j : on_node_[n]) {
      const Micros at = TellBefore(j, cluster_.node(n).horizon);
      if (at > now_) next = std::min(next, at);
    }
  }
  return next;
}

// No job is waiting for its room.
void Core::TellToLeave(JobIndex j, StopReason reason) {
  Job& job = jobs_[j];
  const Victim victim = PriceOf(j);
  Terms terms;
  terms.remaining = job.estimate.expected;
  terms.lost = static_cast<int64_t>(static_cast<__int128>(job.milli) * victim.lost / kSecond / kMilli);
  Vacate(j);
  job.phase = Phase::kStopping;
  Note(j, Decision::Kind::kMaintenance, 0, terms);
  if (j < victims_.size()) victims_[j].job = kNoJob;
  actions_.push_back(Preempt{job.spec.id, 0, victim.mode, reason, terms});
}

}  // namespace vrun::sched::core
