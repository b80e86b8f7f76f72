// SPDX-License-Identifier: Apache-2.0
// What would let a waiting job start now, and when it will start as things are. All trials run on the real state with
// the undo journal and change nothing that a decision depends on.
#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
// Most running jobs whose end is considered, the soonest first.
constexpr size_t kMostEnds = 2048;
constexpr size_t kSingleEnds = 64;
}  // namespace

std::vector<Counterfactual> WhatIf(State& state, JobId job) { return state.core().WhatIf(job); }
std::optional<Forecast> ForecastFor(State& state, JobId job) { return state.core().ForecastFor(job); }
Result<Trial> TryJob(State& state, const JobSpec& job) { return state.core().TryJob(job); }
std::vector<Decision> Why(const State& state, JobId job) {
  const Job* j = state.core().Find(job);
  return j == nullptr ? std::vector<Decision>{} : j->decisions;
}

Worth Core::WorthOf(const Job& job) const {
  Worth worth;
  const Log base = Base(job);
  worth.klass = Log2(static_cast<uint64_t>(policy_.class_weight[static_cast<int>(ClassOf(job))]));
  worth.remaining = -job.estimate.rank;
  worth.deadline = base - worth.klass - worth.remaining;
  worth.fairness = teams_.Fairness(job.team);
  worth.growth = Growth(job);
  return worth;
}

void Core::Note(JobIndex j, Decision::Kind kind, JobId other, const Terms& terms) {
  Job& job = jobs_[j];
  if (job.decisions.size() >= kDecisionsKept) job.decisions.erase(job.decisions.begin());
  job.decisions.push_back({now_, kind, other, WorthOf(job), terms});
}

// Whether a job with these needs, of the same team, would find room and quota now.
bool Core::WouldStart(const Job& like, const JobSpec& spec) {
  if (!Validate(spec)) return false;
  const uint32_t id = Intern(spec);
  const Demand& demand = demands_[id].demand;
  Job trial;
  trial.spec = spec;
  trial.team = like.team;
  trial.milli = demand.total_milli();
  const uint64_t allowed = AlternativesAllowed(trial, demand);
  const size_t mark = cluster_.Mark();
  bool starts = false;
  if (allowed != 0 && LeavesHeadroom(trial, trial.milli)) {
    if (auto placed = placer_.Place(demand, demand.required, allowed)) {
      starts = teams_.Admits(trial.team, ChargesOf(*placed), spec.preemptible).ok;
    }
  }
  cluster_.Undo(mark);
  DropDemand(id);
  return starts;
}

void Core::TrySmaller(const Job& job, std::vector<Counterfactual>* out) {
  for (size_t r = 0; r < job.spec.roles.size(); ++r) {
    const Role& role = job.spec.roles[r];
    // If fewer pods do not fit, more do not either, so bisection finds the most.
    int32_t fits = 0, fails = role.least() / role.block();
    while (fails - fits > 1) {
      const int32_t blocks = (fits + fails) / 2;
      JobSpec spec = job.spec;
      spec.roles[r].pods = blocks * role.block();
      spec.roles[r].min_pods = 0;
      (WouldStart(job, spec) ? fits : fails) = blocks;
    }
    if (fits > 0) {
      out->push_back({.kind = Counterfactual::Kind::kFewerPods,
                      .role = static_cast<int32_t>(r),
                      .number = int64_t{fits} * role.block()});
    }
    for (int32_t gpus = role.request.gpus - 1; gpus > 0; --gpus) {
      JobSpec spec = job.spec;
      spec.roles[r].request.gpus = gpus;
      if (!WouldStart(job, spec)) continue;
      out->push_back({.kind = Counterfactual::Kind::kFewerGpus, .role = static_cast<int32_t>(r), .number = gpus});
      break;
    }
  }
}

void Core::TryElsewhere(const Job& job, std::vector<Counterfactual>* out) {
  std::vector<std::string> types;
  for (NodeId n = 0; n < cluster_.size(); ++n) {
    const NodeSpec& node = cluster_.node(n).spec;
    if (cluster_.node(n).up && node.pool == job.spec.pool && !node.gpu_type.empty()) types.push_back(node.gpu_type);
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  for (const std::string& type : types) {
    const std::vector<std::string>& has = job.spec.gpu_types;
    if (has.empty() || std::find(has.begin(), has.end(), type) != has.end()) continue;
    JobSpec spec = job.spec;
    spec.gpu_types = {type};
    if (WouldStart(job, spec)) out->push_back({.kind = Counterfactual::Kind::kType, .gpu_type = type});
  }
  for (int level = static_cast<int>(job.spec.required) + 1; level < kLevels; ++level) {
    JobSpec spec = job.spec;
    spec.required = static_cast<Level>(level);
    if (!WouldStart(job, spec)) continue;
    out->push_back({.kind = Counterfactual::Kind::kLevel, .level = spec.required});
    break;
  }
}

// At a higher class it might be worth preempting running jobs.
void Core::TryHigherClass(JobIndex j, std::vector<Counterfactual>* out) {
  Job& job = jobs_[j];
  if (!policy_.preemption || victims_.empty() || ClassOf(job) != job.spec.klass) return;
  const Class own = job.spec.klass;
  DemandState fresh;  // without the failed attempts of this pass
  fresh.demand = demands_[job.demand].demand;
  for (int klass = static_cast<int>(own) + 1; klass < kClasses; ++klass) {
    job.spec.klass = static_cast<Class>(klass);
    const size_t mark = cluster_.Mark();
    const bool starts = ChoosePreemption(j, fresh).has_value();
    cluster_.Undo(mark);
    job.spec.klass = own;
    if (!starts) continue;
    out->push_back({.kind = Counterfactual::Kind::kClass, .klass = static_cast<Class>(klass)});
    return;
  }
}

// Running jobs by remaining run time, the soonest end first.
std::vector<std::pair<Micros, JobIndex>> Core::EndsInOrder() const {
  std::vector<std::pair<Micros, JobIndex>> ends;
  for (JobIndex v : running_) ends.push_back({jobs_[v].estimate.expected, v});
  std::sort(ends.begin(), ends.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.first, jobs_[a.second].spec.id) < std::pair(b.first, jobs_[b.second].spec.id);
  });
  if (ends.size() > kMostEnds) ends.resize(kMostEnds);
  return ends;
}

std::optional<Placement> Core::PlaceWithout(const Demand& demand, std::span<const std::pair<Micros, JobIndex>> gone) {
  const size_t mark = cluster_.Mark();
  for (const auto& [in, v] : gone) {
    for (const Room& r : jobs_[v].placement.rooms) cluster_.Release(r);
  }
  std::optional<Placement> placed = placer_.Place(demand, demand.required);
  cluster_.Undo(mark);
  return placed;
}

std::vector<Counterfactual> Core::WhatIf(JobId id) {
  std::vector<Counterfactual> out;
  const JobIndex j = IndexOf(id);
  if (j == kNoJob || jobs_[j].phase != Phase::kPending || cluster_.size() == 0) return out;
  const Job& job = jobs_[j];
  TrySmaller(job, &out);
  TryElsewhere(job, &out);
  TryHigherClass(j, &out);
  const auto ends = EndsInOrder();
  for (size_t i = 0; i < std::min(ends.size(), kSingleEnds); ++i) {
    if (!FitsWithout(j, {&ends[i], 1})) continue;
    out.push_back({.kind = Counterfactual::Kind::kAfter,
                   .after = jobs_[ends[i].second].spec.id,
                   .time = now_ + std::max<Micros>(ends[i].first, 0)});
    break;
  }
  return out;
}

std::optional<Forecast> Core::ForecastFor(JobId id) {
  const JobIndex j = IndexOf(id);
  if (j == kNoJob || jobs_[j].phase != Phase::kPending || cluster_.size() == 0) return std::nullopt;
  const Job& job = jobs_[j];
  if (!job.hold.empty()) return Forecast{std::max(job.hold_start, now_), std::max(job.hold_start, now_), 900, 0};
  const Demand& demand = demands_[job.demand].demand;
  if (AlternativesAllowed(job, demand) == 0) return std::nullopt;
  Placement place;
  return ForecastOf(demand, j, &place);
}

std::optional<Forecast> Core::ForecastOf(const Demand& demand, JobIndex before_job, Placement* place) {
  // More ends never make it fit less, so bisection finds the smallest sufficient number.
  const auto ends = EndsInOrder();
  const auto fits = [&](size_t count) {
    auto placed = PlaceWithout(demand, {ends.data(), count});
    if (placed) *place = *std::move(placed);
    return placed.has_value();
  };
  if (!fits(ends.size())) return std::nullopt;
  size_t enough = ends.size(), few = 0;
  if (fits(0)) enough = 0;
  while (enough > few + 1) {
    const size_t middle = (few + enough) / 2;
    (fits(middle) ? enough : few) = middle;
  }
  Forecast out;
  int64_t room = 0, learned = 0;
  Micros soon = 0, late = 0;
  for (size_t i = 0; i < enough; ++i) {
    const Job& v = jobs_[ends[i].second];
    soon = std::max(soon, v.estimate.expected);
    late = std::max(late, v.estimate.late);
    room += v.milli + 1;
    if (v.estimate.source <= 2 || v.estimate.source == 5) learned += v.milli + 1;
    out.after = v.spec.id;
  }
  // Jobs before it in the queue take room first.
  int64_t before = 0, before_milli = 0;
  for (const Ordered& o : order_) {
    if (pending_[o.index].job == before_job) break;
    if (stamps_[pending_[o.index].job] != pending_[o.index].stamp) continue;
    ++before;
    before_milli += jobs_[pending_[o.index].job].milli;
  }
  Micros drain = 0;
  if (before_milli > 0 && release_rate_[1] > 0) {
    const auto seconds = static_cast<__int128>(before_milli) * 1'000'000 / release_rate_[1];
    drain = static_cast<Micros>(std::min<__int128>(seconds, 365 * 86400)) * kSecond;
  }
  out.start = now_ + std::max(soon, drain);
  out.late = now_ + std::max(late, 2 * drain);
  out.confidence = (200 + (room == 0 ? 700 : 700 * learned / room)) * 8 / (8 + std::min<int64_t>(before, 100));
  return out;
}

Result<Trial> Core::TryJob(const JobSpec& spec) {
  VRUN_TRY(Validate(spec));
  Trial out;
  if (cluster_.size() == 0) return out;
  const uint32_t id = Intern(spec);
  const Demand demand = demands_[id].demand;
  Job trial;
  trial.spec = spec;
  trial.team = teams_.Known(spec.team);
  trial.milli = demand.total_milli();
  const uint64_t allowed = AlternativesAllowed(trial, demand);
  Placement place;
  if (allowed != 0) {
    const size_t mark = cluster_.Mark();
    if (LeavesHeadroom(trial, trial.milli)) {
      if (auto placed = placer_.Place(demand, demand.required, allowed)) {
        out.now = teams_.Admits(trial.team, ChargesOf(*placed), spec.preemptible).ok;
        place = *std::move(placed);
      }
    }
    cluster_.Undo(mark);
    if (!out.now) {
      place = {};
      out.forecast = ForecastOf(demand, kNoJob, &place);
      if (!out.forecast) place = {};
    }
  }
  out.pods = PodsAt(place, 0);
  DropDemand(id);
  return out;
}

}  // namespace vrun::sched::core
