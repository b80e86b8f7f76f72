// SPDX-License-Identifier: Apache-2.0
// Holds: a gang that waited past its bound gets the nodes that become free first. Other jobs may start there only if
// they
//  - are expected (nine times of ten) to be gone before the gang can start,
//  - will be cheap to evict then (preemptive backfill), or
//  - are of a higher class.
// So long waits end whatever the size, and held room does not stay idle.
#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
// Most jobs that one pass considers for held room, of those that it has room for.
constexpr int kBackfillTries = 64;
// Most searches for nodes to hold in one pass: each looks at the whole cluster.
constexpr int kHoldTries = 1;
}  // namespace

void Core::ServeHolds() {
  backfill_tries_ = kBackfillTries;
  hold_tries_ = kHoldTries;
  for (JobIndex j : std::vector<JobIndex>(holders_)) {
    Job& job = jobs_[j];
    const Demand& demand = demands_[job.demand].demand;
    size_t mark = cluster_.Mark();
    if (uint64_t allowed = AlternativesAllowed(job, demand); allowed != 0) {
      if (auto placed = placer_.PlaceOn(demand, job.hold, allowed)) {
        job.refused = teams_.Admits(job.team, ChargesOf(*placed), job.spec.preemptible);
        if (job.refused.ok) {
          Start(j, std::move(*placed));
          continue;
        }
        // The job accepts any type, but the quota of this type forbids the start, so holding this room would only block
        // others.
        cluster_.Undo(mark);
        DropHold(j);
        job.no_hold_before = now_ + kHour;
        continue;
      } else if (TryPreemptBackfill(j)) {
        continue;
      }
    }
    // The expected start has passed: search again for the soonest place.
    if (now_ > job.hold_start && hold_tries_ > 0) {
      --hold_tries_;
      DropHold(j);
      MakeHold(j);
    }
  }
}

void Core::DropHold(JobIndex j) {
  Job& job = jobs_[j];
  if (job.hold.empty()) return;
  for (NodeId n : job.hold) {
    cluster_.Unhold(n);
    for (JobIndex v : on_node_[n]) {
      if (jobs_[v].backfill_of == j) jobs_[v].backfill_of = kNoJob;
    }
  }
  job.hold.clear();
  std::erase(holders_, j);
}

// Where in one domain pods of one shape fit soonest: the time and the nodes.
std::optional<Core::Opening> Core::SoonestIn(ShapeId shape, int32_t pods, Level level, Domain domain) {
  struct Slot {
    Micros in;
    NodeId node;
    int32_t count;
  };
  std::vector<Slot> slots;
  int64_t sum = 0;
  for (uint32_t p = cluster_.First(level, domain); p < cluster_.First(level, domain + 1); ++p) {
    NodeId n = cluster_.At(p);
    if (cluster_.node(n).held > 0) continue;
    int32_t fit = cluster_.FitOn(shape, n);
    if (fit > 0) slots.push_back({0, n, fit});
    sum += fit;
    std::vector<std::pair<Micros, JobIndex>> ends;
    for (JobIndex v : on_node_[n]) ends.push_back({jobs_[v].estimate.late, v});
    std::sort(ends.begin(), ends.end());
    std::vector<const Room*> freed;
    for (const auto& [late, v] : ends) {
      for (const Room& r : jobs_[v].placement.rooms) {
        if (r.node == n) freed.push_back(&r);
      }
      int32_t then = cluster_.FitWith(shape, n, freed);
      if (then > fit) slots.push_back({late, n, then - fit});
      sum += std::max(then - fit, 0);
      fit = std::max(fit, then);
    }
  }
  if (sum < pods) return std::nullopt;
  std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.in < b.in; });
  Opening opening;
  for (const Slot& s : slots) {
    opening.in = s.in;
    if (std::find(opening.nodes.begin(), opening.nodes.end(), s.node) == opening.nodes.end()) {
      opening.nodes.push_back(s.node);
    }
    if ((pods -= s.count) <= 0) break;
  }
  return opening;
}

// Chooses block by block, each time the place where one more block fits soonest.
std::optional<Core::Opening> Core::SoonestBlocks(const Demand::Part& part, ShapeId shape, Level level, Domain domain) {
  struct Choice {
    Domain domain;
    int32_t blocks;  // chosen
    Opening chosen;
    std::optional<Opening> next;  // with one more block
  };
  std::vector<Choice> choices;
  const uint32_t last = cluster_.First(level, domain + 1) - 1;
  for (Domain c = cluster_.DomainOf(part.segment_level, cluster_.First(level, domain));
       c <= cluster_.DomainOf(part.segment_level, last); ++c) {
    choices.push_back({c, 0, {}, SoonestIn(shape, part.block(), part.segment_level, c)});
  }
  for (int32_t block = 0; block < part.pods / part.block(); ++block) {
    Choice* best = nullptr;
    for (Choice& c : choices) {
      if (c.next && (best == nullptr || c.next->in < best->next->in)) best = &c;
    }
    if (best == nullptr) return std::nullopt;
    best->chosen = std::move(*best->next);
    ++best->blocks;
    best->next = SoonestIn(shape, (best->blocks + 1) * part.block(), part.segment_level, best->domain);
  }
  Opening all;
  for (const Choice& c : choices) {
    if (c.blocks == 0) continue;
    all.in = std::max(all.in, c.chosen.in);
    all.nodes.insert(all.nodes.end(), c.chosen.nodes.begin(), c.chosen.nodes.end());
  }
  return all;
}

bool Core::MakeHold(JobIndex j) {
  Job& job = jobs_[j];
  const Demand& demand = demands_[job.demand].demand;
  const uint64_t allowed = AlternativesAllowed(job, demand);
  if (allowed == 0) return false;
  PrepareVictims();
  std::optional<Opening> best;
  for (size_t a = 0; a < demand.alternatives.size(); ++a) {
    if ((allowed >> a & 1) == 0) continue;
    for (Domain d = 0; d < cluster_.domains(demand.required); ++d) {
      Opening all;
      bool possible = true;
      for (size_t i = 0; i < demand.parts.size() && possible; ++i) {
        const Demand::Part& needs = demand.parts[i];
        const ShapeId shape = demand.alternatives[a].shapes[i];
        const bool blocks = needs.segment > 1 && needs.segment_level < demand.required;
        auto part =
            blocks ? SoonestBlocks(needs, shape, demand.required, d) : SoonestIn(shape, needs.pods, demand.required, d);
        possible = part.has_value();
        if (!possible) break;
        all.in = std::max(all.in, part->in);
        for (NodeId n : part->nodes) {
          if (std::find(all.nodes.begin(), all.nodes.end(), n) == all.nodes.end()) all.nodes.push_back(n);
        }
      }
      if (possible && (!best || all.in < best->in)) best = std::move(all);
    }
  }
  if (!best) return false;
  job.hold = std::move(best->nodes);
  job.hold_start = now_ + best->in;
  holders_.push_back(j);
  Hold hold{job.spec.id, {}, job.hold_start};
  for (NodeId n : job.hold) {
    cluster_.Hold(n);
    hold.nodes.push_back(cluster_.node(n).spec.name);
  }
  Note(j, Decision::Kind::kHeld, 0, {});
  actions_.push_back(std::move(hold));
  return true;
}

// A hard deadline is met if the job starts now, or if learned run times promise room in time.
void Core::Admit(JobIndex j) {
  Job& job = jobs_[j];
  job.asked = false;
  // The answer must precede the actions that follow from it.
  const size_t at = actions_.size();
  actions_.push_back(Admission{job.spec.id, false, job.spec.limit > 0 || job.estimate.seen, kNever, kNever});
  auto answer = [&]() -> Admission& { return std::get<Admission>(actions_[at]); };
  if (!answer().known || ClassOf(job) == Class::kScavenger) return;
  const Micros run = RunOf(job);
  const auto promise = [&](Micros start) {
    answer() = {job.spec.id, start + run <= job.spec.deadline, true, start, start + run};
    if (!answer().met) return false;
    job.promised = true;
    promised_.push_back(job.spec.id);
    return true;
  };
  DemandState fresh;
  fresh.demand = demands_[job.demand].demand;
  if (now_ + run <= job.spec.deadline && TryPlace(j, fresh)) {
    promise(now_);
    return;
  }
  if (holders_.size() >= static_cast<size_t>(policy_.holds) || !MakeHold(j)) return;
  if (promise(job.hold_start)) return;
  DropHold(j);
  actions_.pop_back();  // the Hold
}

// The run time that a promise assumes, from start to end.
Micros Core::RunOf(const Job& job) { return job.spec.limit > 0 ? job.spec.limit : job.estimate.late; }

// Reviews the promises that can still break: by a late hold, a lost node, room taken by a higher class, or a program
// that runs longer than ever before.
void Core::ReviewPromises() {
  std::erase_if(promised_, [this](JobId id) {
    const JobIndex j = IndexOf(id);
    if (j == kNoJob || !jobs_[j].promised) return true;
    Admission now{id, false, true, kNever, kNever};
    if (KeepsPromise(j, &now)) return false;
    jobs_[j].promised = false;
    actions_.push_back(now);
    return true;
  });
}

bool Core::KeepsPromise(JobIndex j, Admission* now) {
  Job& job = jobs_[j];
  const Micros deadline = job.spec.deadline;
  switch (job.phase) {
    case Phase::kRunning:
      Estimate(j);
      now->start = job.started;
      now->end = job.spec.limit > 0 ? std::max(job.started + job.spec.limit, now_) : now_ + job.estimate.late;
      return now->end <= deadline;
    case Phase::kPending:
      if (now_ + RunOf(job) > deadline) break;
      // It lost its hold or its room: gets another one, if that is in time.
      if (job.hold.empty() && (holders_.size() >= static_cast<size_t>(policy_.holds) || !MakeHold(j))) break;
      now->start = std::max(job.hold_start, now_);
      now->end = now->start + RunOf(job);
      return now->end <= deadline;
    default:  // on its way to a place or away from one
      return now_ <= deadline;
  }
  return false;
}

bool Core::MayUseHold(const Job& job, const Job& holder) const {
  if (ClassOf(job) > ClassOf(holder)) return true;
  if (now_ + job.estimate.late <= holder.hold_start) return true;
  const Checkpoint& c = job.spec.checkpoint;
  if (!job.spec.preemptible || (!c.on_demand && c.period == 0)) return false;
  Micros restore = c.restore >= 0 ? c.restore : policy_.default_restore;
  Micros repeat = c.on_demand ? (c.save >= 0 ? c.save : policy_.default_save) : c.period;
  auto cost = static_cast<__int128>(Exp2Milli(WaitCost(job))) * (restore + repeat);
  auto worth = static_cast<__int128>(Exp2Milli(WaitCost(holder))) * (now_ - holder.waiting_since);
  return cost * 1000 <= worth * policy_.backfill_price;
}

bool Core::TryBackfill(JobIndex j, DemandState& state) {
  Job& job = jobs_[j];
  uint64_t allowed = AlternativesAllowed(job, state.demand);
  if (allowed == 0 || backfill_tries_ <= 0) return false;
  bool room = false;
  for (JobIndex h : holders_) {
    if (h == j) continue;
    size_t mark = cluster_.Mark();
    auto placed = placer_.PlaceOn(state.demand, jobs_[h].hold, allowed);
    if (!placed) continue;
    room = true;
    if (MayUseHold(job, jobs_[h]) && teams_.Admits(job.team, ChargesOf(*placed), job.spec.preemptible).ok) {
      Start(j, std::move(*placed));
      job.backfill_of = h;
      return true;
    }
    cluster_.Undo(mark);
  }
  if (room) --backfill_tries_;
  state.no_backfill = !room;
  return false;
}

}  // namespace vrun::sched::core
