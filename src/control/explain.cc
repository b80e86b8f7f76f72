// SPDX-License-Identifier: Apache-2.0
#include "control/explain.h"

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/escape.h"
#include "sched/explain.h"
#include "sched/view.h"

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

// What one node has of each, free now or at all.
struct Room {
  int64_t gpus = 0, milli_cpus = 0, memory_bytes = 0;
  bool right_type = true;
  bool Fits(const Needs& n) const {
    return (n.gpus == 0 || (right_type && gpus >= n.gpus)) && milli_cpus >= n.milli_cpus &&
           memory_bytes >= n.memory_bytes;
  }
};
Room FreeOf(const core::NodeRoom& r, const Needs& needs) {
  return {r.free_gpus, r.free_milli_cpus, r.free_memory_bytes, HasType(r, needs)};
}
Room TotalOf(const core::NodeRoom& r, const Needs& needs) {
  return {r.spec->gpus, r.spec->milli_cpus, r.spec->memory_bytes, HasType(r, needs)};
}

// "needs 2 cores; the best node of pool local has 1 core free": the first thing that no node has enough of.
std::string Lacking(const Needs& needs, const std::vector<Room>& rooms, const std::string& best_node,
                    const std::string& end, const std::string& where) {
  Room best;
  bool any_type = false;
  for (const Room& r : rooms) {
    any_type = any_type || r.right_type;
    if (r.right_type) best.gpus = std::max(best.gpus, r.gpus);
    best.milli_cpus = std::max(best.milli_cpus, r.milli_cpus);
    best.memory_bytes = std::max(best.memory_bytes, r.memory_bytes);
  }
  const std::string gpus = Gpus(needs.gpus * core::kMilli, needs.gpu_type);
  if (needs.gpus > 0 && !any_type) return "needs " + gpus + "; no node of " + where + " that is up has that type";
  auto text = [&](const std::string& need, const std::string& has) {
    return "needs " + need + "; the " + best_node + " of " + where + " has " + has + end;
  };
  if (best.gpus < needs.gpus) return text(gpus, std::to_string(best.gpus));
  if (best.milli_cpus < needs.milli_cpus) return text(Cores(needs.milli_cpus), Cores(best.milli_cpus));
  if (best.memory_bytes < needs.memory_bytes) {
    return text(Bytes(needs.memory_bytes) + " of memory", Bytes(best.memory_bytes));
  }
  return "no single node of " + where + " has all that it needs" + end;
}

std::string NoRoom(const core::State& state, const JobRow& job) {
  const std::string where = "pool " + Escape(job.pool);
  std::vector<Room> up;
  bool joined = false;
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (r.spec->pool != job.pool) continue;
    joined = true;
    if (r.up) up.push_back(FreeOf(r, job.needs));
  }
  if (!joined) return "no node has joined " + where + " yet";
  if (up.empty()) return "no node of " + where + " is up";
  return Lacking(job.needs, up, "best node", " free", where);
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

std::string TextOf(const core::State& state, const JobRow& job, const core::Blocker& b) {
  const std::string team = "team " + Escape(b.team);
  switch (b.kind) {
    case Kind::kDependency: return "waits for the end of job " + std::to_string(b.other);
    case Kind::kBeginTime: return "begins at " + FormatRfc3339(job.scheduling.begin_us());
    case Kind::kNeverFits:
    case Kind::kNoRoom: return NoRoom(state, job);
    case Kind::kTopology: return "the room that is free lies too far apart";
    case Kind::kLimit:
      return team + " is limited to " + Gpus(b.need, b.gpu_type) + " and uses " + Gpus(b.have, b.gpu_type);
    case Kind::kGuarantee:
      return "it cannot be preempted (see --requeue), so it has to stay within the " + Gpus(b.need, b.gpu_type) +
             " that " + team + " is guaranteed, of which " + Gpus(b.have, b.gpu_type) +
             (b.have == core::kMilli ? " is" : " are") + " used";
    case Kind::kHolds: return "the room that is free is kept for job " + std::to_string(b.other);
    case Kind::kClaiming:
      return "room is being made for it: " + CountOf(b.have, "job") + (b.have == 1 ? " is" : " are") + " leaving";
    case Kind::kOrder: return CountOf(b.have, "job") + (b.have == 1 ? " comes" : " come") + " before it";
    case Kind::kPatience: return "it would fit, but farther apart than it prefers";
    case Kind::kHeadroom: return "the " + Gpus(b.have, "") + " that are free are kept ready for inference";
    case Kind::kDoomed: return "job " + std::to_string(b.other) + " did not succeed, and this was to start only then";
    case Kind::kMaintenance: return "the nodes with room for it go out of service before it could end";
  }
  return "waits";
}

// What would let it start at once.
void StartsNow(const core::State& state, const JobRow& job, v1::WhyAnswer* answer) {
  const std::string number = std::to_string(job.needs.gpus);
  std::vector<std::string> pools, types;
  int64_t fewer = 0;
  auto add = [](std::vector<std::string>* to, const std::string& what) {
    if (std::find(to->begin(), to->end(), what) == to->end()) to->push_back(what);
  };
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (!r.up || r.held) continue;
    Room free = FreeOf(r, job.needs);
    if (r.spec->pool != job.pool) {
      if (free.Fits(job.needs)) add(&pools, r.spec->pool);
      continue;
    }
    if (job.needs.gpus == 0) continue;
    Needs less = job.needs;
    less.gpus = std::min<int64_t>(free.gpus, job.needs.gpus - 1);
    if (less.gpus > fewer && free.Fits(less)) fewer = less.gpus;
    if (free.right_type) continue;
    free.right_type = true;
    if (free.Fits(job.needs)) add(&types, r.spec->gpu_type);
  }
  for (const std::string& pool : pools) answer->add_starts_now("with -P " + Escape(pool));
  for (const std::string& type : types) answer->add_starts_now("with -G " + Escape(type) + ":" + number);
  const std::string type = job.needs.gpu_type.empty() ? "" : Escape(job.needs.gpu_type) + ":";
  if (fewer > 0) answer->add_starts_now("with -G " + type + std::to_string(fewer));
}

// When enough of those who run on one node are expected to be gone.
struct Opening {
  core::Micros at = 0;
  uint64_t last = 0;  // whose end makes the room
  bool learned = true;
};
std::optional<Opening> OpeningOn(const core::State& state, const core::NodeRoom& room, const JobRow& job,
                                 const JobRows& jobs) {
  Room free = FreeOf(room, job.needs);
  std::vector<Opening> ends;
  for (core::JobId id : core::RunningOn(state, room.spec->name)) {
    const auto row = jobs.find(id);
    const auto view = core::ViewJob(state, id);
    if (row == jobs.end() || !view) continue;
    ends.push_back({view->expected, id, view->learned || row->second.scheduling.estimate_s() > 0});
  }
  std::sort(ends.begin(), ends.end(), [](const Opening& a, const Opening& b) { return a.at < b.at; });
  bool learned = true;
  for (const Opening& e : ends) {
    const Needs& gone = jobs.at(e.last).needs;
    free.gpus += gone.gpus;
    free.milli_cpus += gone.milli_cpus;
    free.memory_bytes += gone.memory_bytes;
    learned = learned && e.learned;
    if (free.Fits(job.needs)) return Opening{e.at, e.last, learned};
  }
  return std::nullopt;
}

void Expect(const core::State& state, const JobRow& job, const JobRows& jobs, int64_t wall_now, core::Micros core_now,
            v1::WhyAnswer* answer) {
  if (const auto view = core::ViewJob(state, job.id); view && view->hold_start > 0) {
    answer->set_expected_us(wall_now + view->hold_start - core_now);
    answer->set_expected_why("nodes are held for it until then");
    return;
  }
  std::optional<Opening> best;
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (!r.up || r.spec->pool != job.pool) continue;
    const auto opening = OpeningOn(state, r, job, jobs);
    if (opening && (!best || opening->at < best->at)) best = opening;
  }
  if (!best) return;
  const std::string who = "job " + std::to_string(best->last);
  const std::string ahead = answer->queue_position() > 1 ? ", if nobody who is ahead takes that room" : "";
  if (!best->learned) {
    answer->set_expected_why("when " + who + " ends, and nobody knows yet how long it runs" + ahead);
    return;
  }
  answer->set_expected_us(wall_now + best->at);
  answer->set_expected_why("when " + who + " ends, by how long its like ran" + ahead);
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
  if (blockers->empty()) return "the scheduler looks at it in a moment";
  std::string text = TextOf(state, job, blockers->front());
  const core::Blocker& last = blockers->back();
  if (blockers->size() > 1 && last.kind == Kind::kOrder) text += " (" + TextOf(state, job, last) + ")";
  return text;
}

void ExplainJob(const core::State& state, const JobRow& job, const JobRows& jobs, int64_t wall_now,
                core::Micros core_now, v1::WhyAnswer* answer) {
  for (const core::Terms& t : core::TermsOf(state, job.id)) {
    v1::DecisionTerms* terms = answer->add_terms();
    terms->set_gain_milli(t.gain);
    terms->set_price_milli(t.price);
    terms->set_wait_without_us(t.wait_without);
    terms->set_remaining_us(t.remaining);
    terms->set_lost_gpu_s(t.lost);
  }
  const auto blockers = core::Explain(state, job.id);
  if (!blockers) return;
  answer->set_summary(WhyItWaits(state, job));
  bool room_lacks = false;
  for (const core::Blocker& b : *blockers) {
    room_lacks = room_lacks || b.kind == Kind::kNoRoom || b.kind == Kind::kNeverFits;
    v1::WhyAnswer::Blocker* out = answer->add_blockers();
    out->set_kind(NameOf(b.kind));
    out->set_text(TextOf(state, job, b));
    out->set_have(b.have);
    out->set_need(b.need);
    out->set_other_job(b.other);
    out->set_team(b.team);
    out->set_gpu_type(b.gpu_type);
  }
  if (!room_lacks) return;
  StartsNow(state, job, answer);
  Expect(state, job, jobs, wall_now, core_now, answer);
}

Status CheckFeasible(const core::State& state, const JobRow& job) {
  const core::JobSpec spec = SpecOf(job);
  VRUN_TRY(core::Validate(spec));
  if (core::Feasible(state, spec)) return {};
  std::vector<Room> rooms;
  for (const core::NodeRoom& r : core::Nodes(state)) {
    if (r.spec->pool == job.pool) rooms.push_back(TotalOf(r, job.needs));
  }
  return Error(Code::kInvalid, "the request can never be met: " +
                                   Lacking(job.needs, rooms, "largest node", "", "pool " + Escape(job.pool)) +
                                   ": ask for less or choose another pool");
}

std::string PreemptionReason(const core::Preempt& preempt, const JobRows& jobs) {
  static constexpr const char* kClasses[] = {"scavenger", "experiment", "training", "production", "inference"};
  std::string who = "job " + std::to_string(preempt.beneficiary);
  if (auto it = jobs.find(preempt.beneficiary); it != jobs.end()) {
    const v1::Scheduling& s = it->second.scheduling;
    who += std::string(" (") + kClasses[static_cast<int>(ClassOf(s.class_()))] + ", team " + Escape(s.team()) + ")";
  }
  switch (preempt.reason) {
    case core::StopReason::kGuarantee: return who + " takes back what its team is guaranteed";
    case core::StopReason::kBackfill: return who + " takes the room that was kept for it";
    case core::StopReason::kMove: return "it makes room for " + who + " by going elsewhere";
    case core::StopReason::kMaintenance: return "its node goes out of service";
    case core::StopReason::kWorth: break;
  }
  return who + " needs its room";
}

}  // namespace vrun::control
