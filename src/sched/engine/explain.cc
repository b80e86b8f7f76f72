// SPDX-License-Identifier: Apache-2.0
#include "sched/engine/explain.h"

#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

std::optional<std::vector<Blocker>> Explain(const State& state, JobId job) { return state.core().Blockers(job); }
Status Feasible(const State& state, const JobSpec& job) { return state.core().Feasible(job); }

// Pods that fit one by one may not fit in blocks.
std::optional<Blocker> Core::BlockedByBlocks(const Demand& demand, const Demand::Part& part,
                                             const Demand::Alternative& alternative, ShapeId shape) const {
  struct Pods {
    int64_t now = 0, empty = 0;
  };
  std::map<std::pair<Domain, Domain>, Pods> inner;  // by domain of the gang, of the block
  for (uint32_t p = 0; p < cluster_.size(); ++p) {
    Pods& pods = inner[{cluster_.DomainOf(demand.required, p), cluster_.DomainOf(part.segment_level, p)}];
    pods.now += cluster_.Fit(shape)[p];
    if (cluster_.node(cluster_.At(p)).up) pods.empty += cluster_.FitEmpty(shape, cluster_.At(p));
  }
  std::map<Domain, Pods> outer;
  Pods best;
  for (const auto& [where, pods] : inner) {
    Pods& sum = outer[where.first];
    sum.now += pods.now / part.segment * part.segment;
    sum.empty += pods.empty / part.segment * part.segment;
    best = {std::max(best.now, sum.now), std::max(best.empty, sum.empty)};
  }
  if (best.now >= part.pods) return std::nullopt;
  const bool ever = best.empty >= part.pods;
  return Blocker{.kind = ever ? Blocker::Kind::kNoRoom : Blocker::Kind::kTopology,
                 .role = part.role,
                 .have = ever ? best.now : best.empty,
                 .need = part.pods,
                 .level = part.segment_level,
                 .gpu_type = alternative.gpu_type};
}

std::optional<std::vector<Blocker>> Core::Blockers(JobId id) const {
  using Kind = Blocker::Kind;
  const JobIndex index = IndexOf(id);
  if (index == kNoJob) return std::nullopt;
  const Job& job = jobs_[index];
  std::vector<Blocker> out;
  if (job.phase == Phase::kNotYet) {
    for (JobId other : job.spec.after) {
      if (by_id_.contains(other)) out.push_back({.kind = Kind::kDependency, .other = other});
    }
    for (JobId other : job.spec.after_ok) {
      if (by_id_.contains(other)) out.push_back({.kind = Kind::kDependency, .other = other});
    }
    if (job.doomed_by != 0) out.push_back({.kind = Kind::kDoomed, .other = job.doomed_by});
    if (job.spec.begin_after > now_) out.push_back({.kind = Kind::kBeginTime, .time = job.spec.begin_after});
    return out;
  }
  if (job.phase == Phase::kClaiming) {
    out.push_back({.kind = Kind::kClaiming, .have = job.victims_left});
    return out;
  }
  if (job.phase != Phase::kPending) return std::nullopt;
  const Demand& demand = demands_[job.demand].demand;
  for (const Demand::Alternative& a : demand.alternatives) {
    // Quotas, then room.
    std::vector<Teams::Charge> charges;
    if (job.milli > 0) charges.push_back({teams_.KnownType(a.gpu_type), job.milli, 0});
    if (auto verdict = teams_.Admits(job.team, charges, job.spec.preemptible); !verdict.ok) {
      out.push_back({.kind = verdict.guarantee ? Kind::kGuarantee : Kind::kLimit,
                     .have = verdict.used,
                     .need = verdict.bound,
                     .team = teams_.name(verdict.team),
                     .gpu_type = a.gpu_type});
    }
    for (size_t i = 0; i < demand.parts.size(); ++i) {
      const Demand::Part& part = demand.parts[i];
      int64_t now = 0, hidden = 0, empty = 0, leaving = 0;
      int64_t best_domain = 0, domain = 0, best_unheld = 0, unheld = 0;  // the latter without holds
      Micros back = 0;
      for (uint32_t p = 0; p < cluster_.size(); ++p) {
        const NodeId n = cluster_.At(p);
        const int32_t fit = cluster_.FitOn(a.shapes[i], n);
        const bool own = std::find(job.hold.begin(), job.hold.end(), n) != job.hold.end();
        const bool visible = own || cluster_.node(n).held == 0;
        (visible ? now : hidden) += fit;
        if (cluster_.Limited(a.shapes[i], n)) {
          leaving += cluster_.FitEmpty(a.shapes[i], n) > 0 ? 1 : 0;
          back = std::max(back, windows_.At(cluster_.node(n).spec.name, now_, policy_.maintenance_lead).ends);
        }
        if (cluster_.node(n).up) empty += cluster_.FitEmpty(a.shapes[i], n);
        if (p == cluster_.First(demand.required, cluster_.DomainOf(demand.required, p))) domain = unheld = 0;
        if (visible) best_domain = std::max(best_domain, domain += fit);
        best_unheld = std::max(best_unheld, unheld += fit);
      }
      if (part.segment > 1) {
        if (auto blocks = BlockedByBlocks(demand, part, a, a.shapes[i]); blocks) out.push_back(*blocks);
      }
      Blocker b{.kind = Kind::kNoRoom, .role = part.role, .have = now, .need = part.pods, .gpu_type = a.gpu_type};
      if (now < part.pods && leaving > 0) {
        out.push_back(
            {.kind = Kind::kMaintenance, .role = part.role, .have = leaving, .time = back, .gpu_type = a.gpu_type});
      }
      if (empty < part.pods) {
        b.kind = Kind::kNeverFits;
        b.have = empty;
        out.push_back(b);
      } else if (now < part.pods && best_unheld >= part.pods) {
        b.kind = Kind::kHolds;
        for (JobIndex h : holders_) {
          if (b.other == 0) b.other = jobs_[h].spec.id;
        }
        out.push_back(b);
      } else if (now + hidden < part.pods) {
        out.push_back(b);
      } else if (best_domain < part.pods) {
        b.kind = Kind::kTopology;
        b.have = best_domain;
        b.level = demand.required;
        out.push_back(b);
      } else if (job.wish < demand.required) {
        b.kind = Kind::kPatience;
        b.level = job.wish;
        b.time = job.waiting_since + PatienceOf(job, demand);
        out.push_back(b);
      }
    }
  }
  if (!LeavesHeadroom(job, job.milli)) {
    out.push_back({.kind = Kind::kHeadroom,
                   .have = cluster_.total_milli() - teams_.used(kRoot),
                   .need = job.milli + headroom_target_});
  }
  // As of the last pass.
  if (auto verdict = job.refused; !verdict.ok) {
    out.push_back({.kind = verdict.guarantee ? Kind::kGuarantee : Kind::kLimit,
                   .have = verdict.used,
                   .need = verdict.bound,
                   .team = teams_.name(verdict.team),
                   .gpu_type = teams_.TypeName(verdict.type)});
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    if (pending_[order_[i].index].job != index) continue;
    int64_t before = 0;
    for (size_t k = 0; k < i; ++k) before += stamps_[pending_[order_[k].index].job] != 0;
    if (before > 0) out.push_back({.kind = Kind::kOrder, .have = before});
  }
  return out;
}

Status Core::Feasible(const JobSpec& spec) const {
  VRUN_TRY(Validate(spec));
  std::vector<std::string> types = spec.gpu_types;
  if (types.empty()) types.push_back("");
  bool any_node = false;
  std::string why;
  for (const std::string& type : types) {
    bool possible = true;
    for (const Role& role : spec.roles) {
      const Constraint constraint{
          spec.pool,    role.request.total_milli() > 0 ? type : "", spec.labels, spec.tolerations, 0, spec.nodes,
          spec.excluded};
      std::map<Domain, int64_t> pods;
      std::map<std::pair<Domain, Domain>, int64_t> blocks;
      const Level segment_level = std::min(role.segment_level, spec.required);
      int64_t best = 0;
      for (NodeId n = 0; n < cluster_.size(); ++n) {
        const Cluster::Node& node = cluster_.node(n);
        any_node = any_node || (node.spec.pool == spec.pool && node.spec.milli_cpus + node.spec.gpus > 0);
        if (!Admits(constraint, node.spec)) continue;
        int64_t& here = pods[cluster_.DomainOf(spec.required, node.position)];
        here += Cluster::PodsWhenEmpty(role.request, node.spec);
        blocks[{cluster_.DomainOf(spec.required, node.position), cluster_.DomainOf(segment_level, node.position)}] +=
            Cluster::PodsWhenEmpty(role.request, node.spec);
        best = std::max(best, here);
      }
      if (role.segment > 1) {
        pods.clear();
        best = 0;
        for (const auto& [where, count] : blocks) {
          best = std::max(best, pods[where.first] += count / role.segment * role.segment);
        }
      }
      if (best < role.least()) {
        why = "of " + std::to_string(role.least()) + " pods " + std::to_string(best) + " fit at most";
        possible = false;
      }
    }
    if (possible) return {};
  }
  if (!any_node) return {};
  return Error(Code::kInvalid, "the request can never be met: " + why + ": ask for less or choose another pool");
}

}  // namespace vrun::sched::core
