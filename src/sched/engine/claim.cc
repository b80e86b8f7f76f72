// SPDX-License-Identifier: Apache-2.0
// Claims: room given to a gang while its present users are still leaving. From then on the cluster shows the state
// after they have left.
#include <algorithm>
#include <bit>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {

// The change on one node when victims leave and a gang comes.
struct Leftover {
  std::vector<const Room*> freed, taken;

  // Per GPU and in total: max(0, freed - taken). Slices of a GPU are compared one by one. A GPU whose way of sharing or
  // whose sharers change is blocked for all others until then.
  Room Rest(NodeId node, const Cluster::Node& after) const {
    std::array<int64_t, kMaxGpus> milli{};
    std::array<mig::SliceMask, kMaxGpus> before{}, now{};
    std::array<Sharing, kMaxGpus> was{}, is{};
    std::array<uint64_t, kMaxGpus> whose{}, theirs{};  // sharers before and afterwards
    std::array<bool, kMaxGpus> touched{};
    Room left;
    left.node = node;
    for (const Room* r : freed) {
      left.milli_cpus += r->milli_cpus;
      left.memory_bytes += r->memory_bytes;
      left.nics += r->nics;
      for (int i = 0; i < kMaxGpus; ++i) {
        if (r->milli[i] == 0) continue;
        milli[i] += r->milli[i];
        before[i] |= r->mig[i];
        was[i] = r->sharing[i];
        whose[i] = r->sharers[i];
        touched[i] = true;
      }
    }
    is = was;
    theirs = whose;
    for (const Room* r : taken) {
      left.milli_cpus -= r->milli_cpus;
      left.memory_bytes -= r->memory_bytes;
      left.nics -= r->nics;
      for (int i = 0; i < kMaxGpus; ++i) {
        if (r->milli[i] == 0) continue;
        milli[i] -= r->milli[i];
        now[i] |= r->mig[i];
        is[i] = r->sharing[i];
        theirs[i] = r->sharers[i];
      }
    }
    left.milli_cpus = std::max<int64_t>(left.milli_cpus, 0);
    left.memory_bytes = std::max<int64_t>(left.memory_bytes, 0);
    left.nics = std::max(left.nics, 0);
    const int slices = mig::Slices(after.mig_model);
    for (int i = 0; i < kMaxGpus; ++i) {
      if (!touched[i]) continue;
      if (is[i] != was[i] || theirs[i] != whose[i]) milli[i] = after.free_milli[i];
      left.sharing[i] = is[i];
      left.sharers[i] = theirs[i];
      if (is[i] == Sharing::kMig && slices > 0) {
        const auto all = static_cast<mig::SliceMask>((1u << slices) - 1);
        left.mig[i] = static_cast<mig::SliceMask>(is[i] != was[i] ? all & ~after.sliced[i] : before[i] & ~now[i]);
        milli[i] = std::popcount(left.mig[i]) * kMilli / slices;
      }
      left.milli[i] = static_cast<uint16_t>(std::max<int64_t>(milli[i], 0));
      if (left.milli[i] == 0) left.sharing[i] = Sharing::kWhole, left.sharers[i] = 0;
    }
    return left;
  }
};

}  // namespace

// Room that the victims free and the gang does not take is blocked until they are gone.
void Core::KeepLeftovers(const Placement& placement, const std::vector<const Room*>& freed, Plan* plan) {
  std::map<NodeId, Leftover> change;
  for (const Room* r : freed) change[r->node].freed.push_back(r);
  for (const Room& r : placement.rooms) {
    if (auto it = change.find(r.node); it != change.end()) it->second.taken.push_back(&r);
  }
  for (const auto& [node, c] : change) {
    Room left = c.Rest(node, cluster_.node(node));
    if (left == Room{node}) continue;
    cluster_.Take(left);
    plan->leftovers.push_back(left);
  }
}

// The cluster then shows the state after the victims have left: the gang in its room and moving victims in their new
// room. Until they have left, leftovers hold the difference.
void Core::Claim(JobIndex j, Plan& plan, Placement placement, const Terms& terms) {
  DropHold(j);
  RemovePending(j);
  Job& job = jobs_[j];
  job.waiting_since = now_ - job.waited;  // it still waits, but not in the queue
  job.placement = std::move(placement);
  job.charges = ChargesOf(job.placement);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  job.phase = Phase::kClaiming;
  job.victims_left = static_cast<int32_t>(plan.victims.size() + plan.sheds.size());
  job.leftovers = plan.leftovers;
  const JobIndex first = plan.victims.empty() ? plan.sheds.begin()->first : plan.victims.front();
  Note(j, Decision::Kind::kClaimed, jobs_[first].spec.id, terms);
  if (ClassOf(job) == Class::kInference) {
    for (JobIndex v : plan.victims) job.taken_from.push_back(jobs_[v].spec.id);
    for (const auto& [v, rooms] : plan.sheds) job.taken_from.push_back(jobs_[v].spec.id);
  }
  for (JobIndex v : plan.victims) {
    Job& victim = jobs_[v];
    Vacate(v);
    victim.phase = Phase::kStopping;
    victim.beneficiary = j;
    ++victim.preemptions;
    Terms own = terms;
    own.remaining = victim.estimate.expected;
    Note(v, plan.moves.contains(v) ? Decision::Kind::kMoved : Decision::Kind::kEvicted, job.spec.id, own);
    StopReason reason = plan.reason;
    if (auto move = plan.moves.find(v); move != plan.moves.end()) {
      reason = StopReason::kMove;
      victim.move_to = std::move(move->second);
    }
    actions_.push_back(Preempt{victim.spec.id, job.spec.id, victims_[v].mode, reason, own});
    victims_[v].job = kNoJob;
  }
  for (const auto& [v, rooms] : plan.sheds) Shrink(v, rooms, j, terms);
}

}  // namespace vrun::sched::core
