// SPDX-License-Identifier: Apache-2.0
#include "control/state/explain.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/clock.h"
#include "base/escape.h"
#include "control/gpus/gpu_needs.h"
#include "control/gpus/gpu_room.h"
#include "control/state/gang.h"
#include "sched/engine/explain.h"
#include "sched/engine/inspect.h"
#include "sched/model/cluster.h"

namespace vrun::control {
namespace {

namespace core = sched::core;
using Kind = core::Blocker::Kind;

std::string CountOf(int64_t n, const std::string& what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string Bytes(int64_t n) {
  constexpr int64_t kMiB = 1 << 20;
  if (n < kMiB) return CountOf(std::max<int64_t>(n, 0), "byte");
  if (n < 10 * 1024 * kMiB) return std::to_string(n / kMiB) + " MiB";
  return std::to_string(n / (1024 * kMiB)) + " GiB";
}

std::string Cores(int64_t milli) {
  milli = std::max<int64_t>(milli, 0);
  if (milli % 1000 == 0) return CountOf(milli / 1000, "core");
  return std::to_string(milli / 1000) + "." + std::to_string(milli % 1000 / 100) + " cores";
}

std::string Gpus(int64_t milli, const std::string& type) {
  const std::string what = type.empty() ? "gpu" : Escape(type) + " gpu";
  if (milli % core::kMilli == 0) return CountOf(milli / core::kMilli, what);
  return std::to_string(milli / core::kMilli) + "." + std::to_string(milli % core::kMilli / 100) + " " + what + "s";
}

bool HasType(const core::NodeRoom& room, const Needs& needs) {
  return needs.gpu_type.empty() || room.spec->gpu_type == needs.gpu_type;
}

// Whether it may run on the node, whatever room there is.
bool MayUse(const core::JobSpec& spec, const core::NodeSpec& node) {
  const core::Constraint constraint{spec.pool, "", spec.labels, spec.tolerations, 0, spec.nodes, spec.excluded};
  const std::vector<std::string>& types = spec.gpu_types;
  const bool gpus = std::any_of(spec.roles.begin(), spec.roles.end(),
                                [](const core::Role& role) { return role.request.total_milli() > 0; });
  return core::Admits(constraint, node) &&
         (types.size() < 2 || !gpus || std::find(types.begin(), types.end(), node.gpu_type) != types.end());
}

// What it asks of its nodes besides room: " with label a, without taint b".
std::string WishesOf(const v1::Scheduling& s) {
  std::string text;
  const auto add = [&text](const auto& names, const char* what) {
    if (names.empty()) return;
    text += (text.empty() ? "" : ", ") + std::string(what);
    for (int i = 0; i < names.size(); ++i) text += (i == 0 ? " " : i < 8 ? ", " : "") + (i < 8 ? Escape(names[i]) : "");
  };
  add(s.gpu_types(), "GPU types");
  add(s.labels(), "labels");
  add(s.nodes(), "nodes");
  add(s.excluded_nodes(), "without");
  return text;
}

// For one node: what it has free, or in total.
struct Room {
  int64_t gpus = 0, milli_cpus = 0, memory_bytes = 0;
  bool right_type = true;
  int32_t pods = 0;  // that find their GPUs
  bool Fits(const Needs& n) const {
    return (!WantsGpus(n) || (right_type && pods > 0)) && milli_cpus >= n.milli_cpus && memory_bytes >= n.memory_bytes;
  }
};
Room FreeOf(const core::NodeRoom& r, const Needs& needs) {
  return {r.free_gpus, r.free_milli_cpus, r.free_memory_bytes, HasType(r, needs), PodsByGpus(needs, r, false)};
}
Room TotalOf(const core::NodeRoom& r, const Needs& needs) {
  const int whole = std::popcount(r.spec->usable_for(core::Sharing::kWhole));
  return {whole, r.spec->milli_cpus, r.spec->memory_bytes, HasType(r, needs), PodsByGpus(needs, r, true)};
}

// ", but a100, h100"; "" if there are none.
std::string TypesOf(const std::vector<core::NodeRoom>& nodes) {
  std::set<std::string> types;
  for (const core::NodeRoom& node : nodes) {
    if (!node.spec->gpu_type.empty()) types.insert(Escape(node.spec->gpu_type));
  }
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? ", but " : ", ") + type;
  return text;
}

// "needs 2 cores; the best node of pool local has 1 core free": the first resource of which no node has enough.
// `nodes`: those that it may use, all of them with `empty` as if nothing ran there.
std::string Lacking(const Needs& needs, const std::vector<core::NodeRoom>& nodes, bool empty,
                    const std::string& where) {
  const std::string best_node = empty ? "largest node" : "best node", end = empty ? "" : " free";
  Room best;
  bool any_type = false, any_gpu = false;
  std::vector<core::NodeRoom> of_type;
  for (const core::NodeRoom& node : nodes) {
    const Room r = empty ? TotalOf(node, needs) : FreeOf(node, needs);
    if (r.right_type) of_type.push_back(node);
    any_gpu = any_gpu || (r.right_type && r.pods > 0);
    any_type = any_type || r.right_type;
    if (r.right_type) best.gpus = std::max(best.gpus, r.gpus);
    best.milli_cpus = std::max(best.milli_cpus, r.milli_cpus);
    best.memory_bytes = std::max(best.memory_bytes, r.memory_bytes);
  }
  const std::string gpus = needs.gpus > 0 ? Gpus(needs.gpus * core::kMilli, needs.gpu_type) : GpuText(needs);
  if (WantsGpus(needs) && !any_type) {
    return "needs " + gpus + "; no node of " + where + " that is up has that type" + TypesOf(nodes);
  }
  auto text = [&](const std::string& need, const std::string& has) {
    return "needs " + need + "; the " + best_node + " of " + where + " has " + has + end;
  };
  if (WantsGpus(needs) && !any_gpu) {
    if (std::string why = WhyNoGpu(needs, of_type, empty); !why.empty()) return why + " (" + where + ")";
    const auto any = [&](auto has) {
      return std::any_of(of_type.begin(), of_type.end(), [&](const core::NodeRoom& n) { return has(*n.spec); });
    };
    const bool cut = any([](const core::NodeSpec& n) { return (n.mig_gpus & ~n.bad_gpus) != 0; });
    const bool bad = any([](const core::NodeSpec& n) { return n.bad_gpus != 0; });
    return text(gpus, std::to_string(best.gpus)) + (cut ? "; others are in MIG mode and only given in instances" : "") +
           (bad ? "; others are out of service: see `vctl gpus`" : "");
  }
  if (best.milli_cpus < needs.milli_cpus) return text(Cores(needs.milli_cpus), Cores(best.milli_cpus));
  if (best.memory_bytes < needs.memory_bytes) {
    return text(Bytes(needs.memory_bytes) + " of memory", Bytes(best.memory_bytes));
  }
  return "no single node of " + where + " has all that it needs" + end;
}

std::string NoRoom(const core::State& state, const JobRow& job) {
  const std::string where = "pool " + Escape(job.pool);
  std::vector<core::NodeRoom> up;
  bool joined = false, allowed = false, any_up = false;
  const core::JobSpec spec = SpecOf(job);
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (r.spec->pool != job.pool) continue;
    joined = true;
    any_up = any_up || r.up;
    if (!MayUse(spec, *r.spec)) continue;
    allowed = true;
    if (r.up) up.push_back(r);
  }
  const std::string wishes = WishesOf(job.scheduling);
  const std::string asks = wishes.empty() ? "" : " (it asks for " + wishes + ")";
  if (!joined) return "no node has joined " + where + " yet";
  if (!any_up) return "no node of " + where + " is up";
  if (!allowed && wishes.empty()) return "all nodes of " + where + " have taints that it does not tolerate";
  if (up.empty()) return "no node of " + where + " that it may use is up" + asks;
  return Lacking(job.needs, up, false, where) + asks;
}

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kDependency: return "dependency";
    case Kind::kBeginTime: return "begin-time";
    case Kind::kNeverFits: return "no-such-node";
    case Kind::kTopology: return "topology";
    case Kind::kLimit: return "limit";
    case Kind::kGuarantee: return "guarantee";
    case Kind::kNoRoom: return "no-room";
    case Kind::kHolds: return "held";
    case Kind::kClaiming: return "being-freed";
    case Kind::kOrder: return "order";
    case Kind::kPatience: return "patience";
    case Kind::kHeadroom: return "headroom";
    case Kind::kDoomed: return "dependency-failed";
    case Kind::kMaintenance: return "maintenance";
  }
  return "other";
}

constexpr char kHeldText[] = "it is held: `vctl release ";

std::string TextOf(const core::State& state, const JobRow& job, const core::Blocker& b) {
  const std::string team = "team " + Escape(b.team);
  switch (b.kind) {
    case Kind::kDependency: return "waits for the end of job " + std::to_string(b.other);
    case Kind::kBeginTime:
      if (job.scheduling.hold()) return kHeldText + std::to_string(job.id) + "` lets it start";
      return "begins at " + FormatRfc3339(job.scheduling.begin_us());
    case Kind::kNeverFits:
    case Kind::kNoRoom:
      if (PodsAsked(job) == 1 || b.have == 0) return NoRoom(state, job);
      return "needs room for " + std::to_string(b.need) + " pods at once; pool " + Escape(job.pool) + " has room for " +
             std::to_string(b.have) + (b.kind == Kind::kNoRoom ? "" : " when it is empty");
    case Kind::kTopology: return "enough room is free, but not close enough together";
    case Kind::kLimit:
      return team + " is limited to " + Gpus(b.need, b.gpu_type) + " and uses " + Gpus(b.have, b.gpu_type);
    case Kind::kGuarantee:
      return "it cannot be preempted (see --requeue), so it has to stay within the " + Gpus(b.need, b.gpu_type) +
             " that " + team + " is guaranteed, of which " + Gpus(b.have, b.gpu_type) +
             (b.have == core::kMilli ? " is" : " are") + " used";
    case Kind::kHolds: return "the room that is free is kept for job " + std::to_string(b.other);
    case Kind::kClaiming:
      return "its room is being freed: " + CountOf(b.have, "job") + (b.have == 1 ? " is" : " are") + " still stopping";
    case Kind::kOrder: return CountOf(b.have, "job") + (b.have == 1 ? " comes" : " come") + " before it";
    case Kind::kPatience: return "it would fit, but farther apart than it prefers";
    case Kind::kHeadroom: return "the " + Gpus(b.have, "") + " that are free are kept ready for inference";
    case Kind::kDoomed: return "job " + std::to_string(b.other) + " did not succeed, and this was to start only then";
    case Kind::kMaintenance: return "the nodes with room for it go out of service before it could end";
  }
  return "waits";
}

const char* NameOf(core::Decision::Kind kind) {
  using Decided = core::Decision::Kind;
  switch (kind) {
    case Decided::kStarted: return "started";
    case Decided::kClaimed: return "room-claimed";
    case Decided::kStartedLate: return "started-in-claimed-room";
    case Decided::kEvicted: return "evicted";
    case Decided::kMoved: return "moved";
    case Decided::kShrunk: return "shrunk";
    case Decided::kGrown: return "grown";
    case Decided::kHeld: return "room-held";
    case Decided::kMaintenance: return "maintenance";
  }
  return "other";
}

constexpr const char* kClasses[] = {"scavenger", "experiment", "training", "production", "inference"};

// The change as command-line options.
std::string TextOf(const JobRow& job, const core::Counterfactual& c) {
  using Change = core::Counterfactual::Kind;
  const std::string type = job.needs.gpu_type.empty() ? "" : Escape(job.needs.gpu_type) + ":";
  switch (c.kind) {
    case Change::kFewerPods: return "with -N " + std::to_string(c.number);
    case Change::kFewerGpus: return "with -G " + type + std::to_string(c.number);
    case Change::kType:
      if (KindOf(job.needs) == GpuKind::kByMemory) return "on a GPU of type " + Escape(c.gpu_type);
      return "with -G " + Escape(c.gpu_type) + ":" + AmountOf(job.needs);
    case Change::kLevel: return "if its tasks could be farther apart";
    case Change::kClass: return std::string("with --class ") + kClasses[static_cast<int>(c.klass)];
    case Change::kAfter: return "if job " + std::to_string(c.after) + " ended";
  }
  return "";
}

// Changes that would let the job start at once, those that its owner can make most easily first.
void StartsNow(core::State& state, const JobRow& job, v1::WhyAnswer* answer) {
  const auto view = core::InspectJob(state, job.id);
  if (!view || view->phase != core::JobPhase::kWaiting) return;
  std::vector<std::string> pools;
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (!r.up || r.held || r.spec->pool == job.pool || !FreeOf(r, job.needs).Fits(job.needs)) continue;
    if (std::find(pools.begin(), pools.end(), r.spec->pool) == pools.end()) pools.push_back(r.spec->pool);
  }
  for (const std::string& pool : pools) answer->add_starts_now("with -P " + Escape(pool));
  for (const core::Counterfactual& c : core::WhatIf(state, job.id)) answer->add_starts_now(TextOf(job, c));
}

std::string NodeNames(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 16;
  std::string text = names.size() == 1 ? "node " : "nodes ";
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += (i > 0 ? ", " : "") + Escape(names[i]);
  if (names.size() > kMostNamed) text += " and " + std::to_string(names.size() - kMostNamed) + " more";
  return text;
}

void Expect(core::State& state, const JobRow& job, int64_t wall_now, core::Micros core_now, v1::WhyAnswer* answer) {
  const auto forecast = core::ForecastFor(state, job.id);
  if (!forecast) return;
  answer->set_expected_us(wall_now + std::max(forecast->start, core_now) - core_now);
  answer->set_late_us(wall_now + std::max(forecast->late, core_now) - core_now);
  answer->set_confidence_percent(static_cast<uint32_t>(std::clamp<int64_t>(forecast->confidence / 10, 1, 100)));
  std::string why = "by how fast those before it get their room";
  if (const auto view = core::InspectJob(state, job.id); view && view->hold_start > 0) {
    why = NodeNames(view->hold_nodes) + (view->hold_nodes.size() == 1 ? " is" : " are") + " held for it until then";
  } else if (forecast->after != 0) {
    const auto last = core::InspectJob(state, forecast->after);
    why = "when job " + std::to_string(forecast->after) + " ends, " +
          (last && last->learned ? "by how long its like ran" : "and nobody knows yet how long its like run");
  }
  answer->set_expected_why(std::move(why));
}

void AddDecisions(const core::State& state, const JobRow& job, int64_t wall_now, core::Micros core_now,
                  v1::WhyAnswer* answer) {
  for (const core::Decision& d : core::Why(state, job.id)) {
    v1::SchedulingDecision* out = answer->add_decisions();
    out->set_at_us(wall_now + d.at - core_now);
    out->set_kind(NameOf(d.kind));
    out->set_other_job(d.other);
    out->set_gain_milli(d.terms.gain);
    out->set_price_milli(d.terms.price);
    out->set_wait_without_us(d.terms.wait_without);
    out->set_remaining_us(d.terms.remaining);
    out->set_lost_gpu_s(d.terms.lost);
    out->set_worth_class(d.worth.klass);
    out->set_worth_remaining(d.worth.remaining);
    out->set_worth_deadline(d.worth.deadline);
    out->set_worth_fairness(d.worth.fairness);
    out->set_worth_waiting(d.worth.growth);
  }
}

}  // namespace

std::map<uint64_t, uint32_t> QueuePositions(const core::State& state, const JobRows& jobs) {
  std::map<uint64_t, uint32_t> positions;
  std::map<std::string, uint32_t> length;
  for (core::JobId id : core::Waiting(state)) {
    if (auto job = jobs.find(id); job != jobs.end()) positions[id] = ++length[job->second.pool];
  }
  return positions;
}

std::string WhyItWaits(const core::State& state, const JobRow& job) {
  const auto blockers = core::Explain(state, job.id);
  if (!blockers) return "";
  if (blockers->empty()) return "the scheduler has not considered it yet";
  const auto begin = std::find_if(blockers->begin(), blockers->end(),
                                  [](const core::Blocker& b) { return b.kind == Kind::kBeginTime; });
  if (job.scheduling.hold() && begin != blockers->end()) return TextOf(state, job, *begin);
  std::string text = TextOf(state, job, blockers->front());
  const core::Blocker& last = blockers->back();
  if (blockers->size() > 1 && last.kind == Kind::kOrder) text += " (" + TextOf(state, job, last) + ")";
  return text;
}

void ExplainJob(core::State& state, const JobRow& job, int64_t wall_now, core::Micros core_now, v1::WhyAnswer* answer) {
  AddDecisions(state, job, wall_now, core_now, answer);
  const auto blockers = core::Explain(state, job.id);
  if (!blockers) return;
  answer->set_summary(WhyItWaits(state, job));
  for (const core::Blocker& b : *blockers) {
    v1::WhyAnswer::Blocker* out = answer->add_blockers();
    const bool hold = b.kind == Kind::kBeginTime && job.scheduling.hold();
    out->set_kind(hold ? "hold" : NameOf(b.kind));
    out->set_text(TextOf(state, job, b));
    out->set_have(b.have);
    out->set_need(b.need);
    out->set_other_job(b.other);
    out->set_team(b.team);
    out->set_gpu_type(b.gpu_type);
  }
  if (blockers->empty()) return;
  StartsNow(state, job, answer);
  Expect(state, job, wall_now, core_now, answer);
}

Status CheckFeasible(const core::State& state, const JobRow& job) {
  const core::JobSpec spec = SpecOf(job);
  VRUN_TRY(core::Validate(spec));
  const Status feasible = core::Feasible(state, spec);
  if (feasible) return {};
  std::vector<core::NodeRoom> rooms;
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (MayUse(spec, *r.spec)) rooms.push_back(r);
  }
  // Each pod alone would fit.
  if (std::any_of(rooms.begin(), rooms.end(),
                  [&](const core::NodeRoom& r) { return TotalOf(r, job.needs).Fits(job.needs); })) {
    return feasible;
  }
  const std::string where = "pool " + Escape(job.pool), wishes = WishesOf(job.scheduling);
  const std::string asks = wishes.empty() ? "" : " (it asks for " + wishes + ")";
  const std::string why = rooms.empty() ? "no node of " + where + " is one that it may use" +
                                              (wishes.empty() ? ", because of their taints: see --tolerate" : "")
                                        : Lacking(job.needs, rooms, true, where);
  return Error(Code::kInvalid, "the request can never be met: " + why + asks + ": ask for less or choose another pool");
}

namespace {

std::string Who(core::JobId id, const JobRows& jobs) {
  std::string who = "job " + std::to_string(id);
  if (auto it = jobs.find(id); it != jobs.end()) {
    const v1::Scheduling& s = it->second.scheduling;
    who += std::string(" (") + kClasses[static_cast<int>(ClassOf(s.class_()))] + ", team " + Escape(s.team()) + ")";
  }
  return who;
}

}  // namespace

std::string RoomFor(core::JobId beneficiary, const JobRows& jobs) { return Who(beneficiary, jobs) + " needs its room"; }

std::string PreemptionReason(const core::Preempt& preempt, const JobRows& jobs) {
  const std::string who = Who(preempt.beneficiary, jobs);
  switch (preempt.reason) {
    case core::StopReason::kGuarantee: return who + " takes back what its team is guaranteed";
    case core::StopReason::kBackfill: return who + " takes the room that was kept for it";
    case core::StopReason::kMove: return "it makes room for " + who + " by going elsewhere";
    case core::StopReason::kMaintenance: return "its node goes out of service";
    case core::StopReason::kTurn: return who + " has waited for too long";
    case core::StopReason::kWorth: break;
  }
  return RoomFor(preempt.beneficiary, jobs);
}

}  // namespace vrun::control
