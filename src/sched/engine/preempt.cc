// SPDX-License-Identifier: Apache-2.0
// Preemption has a price. A victim is delayed until the beneficiary is through, repeats what was not saved and
// restores; the beneficiary waits less. With omega the cost of a second of waiting (policy.h):
//
//   gain  = omega_j * (wait saved - time until the room is free)
//   price = sum over victims of omega_v * min(1, T_j / T_v) * (share * delay + repeated + restore)
//                              * (1 + repeat * preemptions so far)
//   wait saved, delay = T_j, or until room comes by itself if that is sooner
//   share = the part of the freed room that it uses, if others wait for the rest
//   do it iff gain > (1 + theta) * price, and (1 + theta) times every victim's density is below the beneficiary's
//
// That compares the yield of the room: omega / T is the value of a second of running. Without the repeated work, gain >
// price means rho_j > rho_v. A job that ends soon needs no special rule, because its T_v is small. Among jobs that may
// be evicted, the least dense is the cheapest; a denser one would come back at once by evicting that one. Room below a
// team's guarantee is taken back whatever the gain, from the cheapest of the borrowers.
//
// A victim that fits in other free room is moved: the room is taken for it, it starts there as soon as it has stopped,
// and its price is only its repeated work and restore. So its density does not matter, and scattered free room is
// combined when that is worth it (defragmentation). A plan may move some victims and evict others.
//
// A gang whose turn it is (turns.cc) is denser than all, and needs no gain.
#include <algorithm>
#include <bit>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {

int64_t Scaled(int64_t omega_milli, Micros time) {
  auto v = static_cast<__int128>(omega_milli) * time / kSecond;
  return v > INT64_MAX / 4 ? INT64_MAX / 4 : static_cast<int64_t>(v);
}

int64_t Part(int64_t whole, int64_t part, int64_t of) {
  return static_cast<int64_t>(static_cast<__int128>(whole) * part / of);
}

// Nodes considered for one gang: this many times its pods, and a few more.
constexpr size_t kNodesPerPod = 4;
constexpr size_t kNodesMore = 64;
// Most victims that a plan tries to spare.
constexpr size_t kSpared = 16;
constexpr Micros kForever = 30 * 24 * kHour;
// How much of Policy::turn_share may be spent at once.
constexpr Micros kTurnBurst = 24 * kHour;

}  // namespace

// Tokens bound the work that preemption may waste and the time of the turns, as shares of all GPU time.
void Core::Refill() {
  const auto refill = [&](int64_t share, Micros burst, int64_t* tokens) {
    int64_t per_second = cluster_.total_milli() * share / 1000;
    auto more = static_cast<int64_t>(static_cast<__int128>(per_second) * (now_ - refilled_) / kSecond);
    auto most = static_cast<int64_t>(static_cast<__int128>(per_second) * burst / kSecond);
    *tokens = std::min(*tokens + more, most);
  };
  refill(policy_.lost_budget, policy_.lost_burst, &lost_tokens_);
  refill(policy_.turn_share, kTurnBurst, &turn_tokens_);
  refilled_ = now_;
}

Core::Victim Core::PriceOf(JobIndex v) const {
  const Job& job = jobs_[v];
  const Checkpoint& c = job.spec.checkpoint;
  Victim victim;
  victim.job = v;
  victim.id = job.spec.id;
  const Log growth = Growth(job);
  victim.density = Base(job) + teams_.Fairness(job.team) + growth;
  victim.omega = Exp2Milli(WaitCost(job, growth));
  Micros restore = c.restore >= 0 ? c.restore : policy_.default_restore;
  Micros save = job.save_time >= 0 ? job.save_time : c.save >= 0 ? c.save : policy_.default_save;
  Micros unsaved = now_ - job.saved;
  // A job without any saves loses everything, including earlier runs.
  if (!c.on_demand && c.period == 0 && job.saved == job.started) unsaved += job.served;
  victim.mode = StopMode::kKill;
  victim.lost = unsaved + restore;
  if (c.on_demand && save + restore < victim.lost) {
    victim.mode = StopMode::kSave;
    victim.lost = save + restore;
    victim.latency = save;
  }
  if (c.period > 0) {
    Micros next = c.period - std::min(unsaved, c.period);
    // If a victim stops after its own next save, it pays only the restore, but the beneficiary waits for that save. The
    // two are comparable only when the beneficiary is known. So this applies only if its own save is nearer than a save
    // on demand would take.
    if (next <= (c.on_demand ? save : kSecond * 60) && restore < victim.lost) {
      victim.mode = StopMode::kAfterItsSave;
      victim.lost = restore;
      victim.latency = next;
    }
  }
  Micros quantum = static_cast<Micros>(static_cast<__int128>(save + restore) * policy_.quantum_factor / 1000);
  victim.settled = now_ - job.started >= quantum;
  return victim;
}

// The terms of the decision to carry out the plan. `drained`: the wait until room becomes free by itself. It is at most
// the victims' own remaining run times, weighted by their room. Moving victims are ignored here: they are few.
Terms Core::TermsFor(JobIndex j, const Plan& plan, Micros drained) const {
  Terms terms;
  __int128 weighted = 0;
  int64_t room = 0;
  for (JobIndex v : plan.victims) {
    if (plan.moves.contains(v)) continue;
    weighted += static_cast<__int128>(jobs_[v].milli + 1) * jobs_[v].estimate.service;
    room += jobs_[v].milli + 1;
  }
  terms.wait_without = room == 0 ? drained : std::min(drained, static_cast<Micros>(weighted / room));
  const Micros saved = std::min(terms.wait_without, jobs_[j].estimate.service);
  terms.gain = Scaled(Exp2Milli(WaitCost(jobs_[j])), std::max<Micros>(saved - plan.latency, 0));
  terms.price = plan.price;
  terms.lost = plan.lost / 1000;
  return terms;
}

void Core::PrepareVictims() {
  if (now_ - victims_at_ < policy_.price_interval) return PrepareNewVictims();
  victims_at_ = now_;
  unpriced_.clear();
  victims_.resize(jobs_.size());
  for (Victim& v : victims_) v.job = kNoJob;
  node_floor_.assign(cluster_.size(), INT32_MAX);
  std::array<int64_t, kMaxGpus + 1> ending{};  // rooms of exactly this many GPUs per 10^9 seconds
  for (JobIndex v : running_) {
    Estimate(v);
    const Job& job = jobs_[v];
    int64_t rate = 1'000'000'000 / std::max<int64_t>(job.estimate.expected / kSecond, 1);
    for (const Room& r : job.placement.rooms) ending[r.gpus()] += rate;
    if (!job.spec.preemptible) continue;
    victims_[v] = PriceOf(v);
    for (const Room& r : job.placement.rooms) {
      node_floor_[r.node] = std::min(node_floor_[r.node], victims_[v].density);
    }
  }
  release_rate_ = {ending[0]};
  for (int gpus = 1; gpus <= kMaxGpus; ++gpus) {
    if (ending[gpus] == 0) continue;
    for (int k = 1; k <= gpus; ++k) release_rate_[k] += gpus / k * ending[gpus];
  }
  FillShelf();
}

// Jobs that have started since the prices were computed. A more urgent job need not wait for the next prices.
void Core::PrepareNewVictims() {
  if (unpriced_.empty()) return;
  victims_.resize(jobs_.size());
  node_floor_.resize(cluster_.size(), INT32_MAX);
  for (JobIndex v : unpriced_) {
    const Job& job = jobs_[v];
    if (job.phase != Phase::kRunning || !job.spec.preemptible) continue;
    Estimate(v);
    victims_[v] = PriceOf(v);
    for (const Room& r : job.placement.rooms) {
      node_floor_[r.node] = std::min(node_floor_[r.node], victims_[v].density);
    }
  }
  unpriced_.clear();
}

// How long until normal ends have served everything that waits. With a short queue, room becomes free by itself. With a
// long queue, room that is not taken from the victims is taken from other waiting jobs.
Micros Core::WaitWithout(const Demand& demand) const {
  const Request& r = demand.parts[0].request;
  int gpus = r.gpus > 0 ? r.gpus : r.slice() ? 1 : 0;
  int64_t rate = release_rate_[gpus];
  if (rate <= 0) return kForever;
  int64_t slots = demand.parts[0].pods;
  if (gpus > 0) slots = std::max(slots, teams_.pending(kRoot) / (int64_t{gpus} * kMilli));
  auto seconds = static_cast<__int128>(slots) * 1'000'000'000 / rate;
  return seconds > kForever / kSecond ? kForever : static_cast<Micros>(seconds) * kSecond;
}

bool Core::Eligible(const Job& beneficiary, Log density, bool reclaim, const Victim& v) const {
  if (v.job == kNoJob) return false;
  const Job& job = jobs_[v.job];
  if (job.phase != Phase::kRunning || job.spec.id != v.id || !job.leaving.empty()) return false;
  if (now_ < job.turn_ends && ClassOf(job) == ClassOf(beneficiary) && !reclaim) return false;
  if (ClassOf(job) > ClassOf(beneficiary)) return false;
  // A promise protects against jobs of the same class.
  if (job.promised && ClassOf(job) == ClassOf(beneficiary) && !reclaim) return false;
  if (teams_.Protected(job.team, job.charges, beneficiary.team)) return false;
  if (reclaim) return teams_.MayReclaim(beneficiary.team, job.team);
  if (!v.settled && ClassOf(job) == ClassOf(beneficiary)) return false;
  Log margin = Log2(static_cast<uint64_t>(1000 + policy_.theta)) - Log2(1000);
  return v.density + margin < density;
}

// Only victims smaller than the beneficiary may move: a larger one would need at least as much room elsewhere.
bool Core::Movable(const Job& beneficiary, const Victim& v) const {
  if (v.job == kNoJob) return false;
  const Job& job = jobs_[v.job];
  return job.phase == Phase::kRunning && job.leaving.empty() && job.spec.id == v.id && v.settled && !job.promised &&
         job.milli < beneficiary.milli && ClassOf(job) <= ClassOf(beneficiary);
}

// `delay`: the victim's delay beyond repeating and restoring; `service`: T of the beneficiary.
int64_t Core::PriceFor(Micros service, Micros delay, const Victim& v) const {
  int64_t price = Scaled(v.omega, delay + v.lost);
  const Micros own = jobs_[v.job].estimate.service;
  if (service < own) price = Part(price, service, own);
  return price + price / 1000 * policy_.repeat_victim * jobs_[v.job].preemptions;
}

// Adds to the plan the cheapest nodes of the domain for this many pods, and the victims there. Returns the price;
// nullopt when it is impossible.
std::optional<int64_t> Core::Select(JobIndex j, ShapeId shape, int32_t need, Level level, Domain domain, Means means,
                                    Micros delay, Plan* plan) {
  const bool reclaim = means == Means::kReclaim, move = means == Means::kMove;
  const Job& job = jobs_[j];
  const Log density = MayTakeTurn(job) ? kTurns : Density(job);
  const Micros service = job.estimate.service;
  const int64_t others = teams_.pending(kRoot) - job.milli;
  auto whole = [&](JobIndex v) {
    return PriceFor(service, move && Movable(job, victims_[v]) ? 0 : delay, victims_[v]);
  };

  // Nodes by their least density; those with free room are always considered. For moves: by the room to clear.
  std::vector<std::pair<Log, NodeId>> nodes;
  for (uint32_t p = cluster_.First(level, domain); p < cluster_.First(level, domain + 1); ++p) {
    NodeId n = cluster_.At(p);
    if (cluster_.Fit(shape)[p] > 0) {
      nodes.push_back({INT32_MIN, n});
    } else if (n < node_floor_.size() && node_floor_[n] != INT32_MAX && cluster_.node(n).held == 0 &&
               (move || reclaim || node_floor_[n] < density)) {
      const Cluster::Node& node = cluster_.node(n);
      nodes.push_back({move ? node.spec.gpus * kMilli - static_cast<Log>(node.free_milli_total()) : node_floor_[n], n});
    }
  }
  const size_t most = kNodesPerPod * static_cast<size_t>(need) + kNodesMore;
  if (nodes.size() > most) {
    std::nth_element(nodes.begin(), nodes.begin() + static_cast<int64_t>(most), nodes.end());
    nodes.resize(most);
  }
  // The price of a slot there: victims by price per room, until one more pod fits.
  struct Option {
    int64_t price_per_slot;
    NodeId node;
    int32_t slots;
    std::vector<JobIndex> victims;
  };
  std::vector<Option> options;
  for (const auto& [floor, n] : nodes) {
    int32_t base = cluster_.FitOn(shape, n);
    if (base > 0) options.push_back({0, n, base, {}});
    std::vector<std::pair<int64_t, JobIndex>> by_price;
    for (JobIndex v : on_node_[n]) {
      if (v >= victims_.size()) continue;
      const bool moves = move && Movable(job, victims_[v]);
      if (!moves && !Eligible(job, density, reclaim, victims_[v])) continue;
      by_price.push_back({whole(v) / (jobs_[v].milli + 1), v});
    }
    std::sort(by_price.begin(), by_price.end());
    Option option{0, n, 0, {}};
    int64_t price = 0;
    int64_t best = INT64_MAX;
    std::vector<const Room*> freed;
    std::vector<JobIndex> so_far;
    for (const auto& [unit, v] : by_price) {
      // If others wait for the rest of a gang's room, only the share of its price for its room on this node.
      int64_t here = 0;
      for (const Room& r : jobs_[v].placement.rooms) here += r.node == n ? r.total_milli() : 0;
      const int64_t idle = std::max<int64_t>(jobs_[v].milli - here - others, 0);
      price += Part(whole(v), here + idle + 1, jobs_[v].milli + 1);
      so_far.push_back(v);
      for (const Room& r : jobs_[v].placement.rooms) {
        if (r.node == n) freed.push_back(&r);
      }
      int32_t gained = cluster_.FitWith(shape, n, freed) - base;
      if (gained > 0 && price / gained < best) {
        best = price / gained;
        option = {best, n, gained, so_far};
      }
    }
    if (option.slots > 0) options.push_back(std::move(option));
  }
  std::stable_sort(options.begin(), options.end(),
                   [](const Option& a, const Option& b) { return a.price_per_slot < b.price_per_slot; });
  int32_t slots = 0;
  int64_t price = 0;
  for (const Option& o : options) {
    if (slots >= need) break;
    slots += o.slots;
    if (std::find(plan->nodes.begin(), plan->nodes.end(), o.node) == plan->nodes.end()) plan->nodes.push_back(o.node);
    for (JobIndex v : o.victims) {
      if (std::find(plan->victims.begin(), plan->victims.end(), v) != plan->victims.end()) continue;
      plan->victims.push_back(v);
      price += whole(v);
    }
  }
  return slots < need ? std::nullopt : std::optional(price);
}

// For blocks: each must fit in one domain of its own level. Chooses the cheapest domains.
bool Core::SelectBlocks(JobIndex j, const Demand::Part& part, ShapeId shape, Level level, Domain domain, Means means,
                        Micros delay, Plan* plan) {
  const uint32_t last = cluster_.First(level, domain + 1) - 1;
  const Domain first = cluster_.DomainOf(part.segment_level, cluster_.First(level, domain));
  const Domain end = cluster_.DomainOf(part.segment_level, last) + 1;
  // As few blocks in each domain as suffice.
  for (int32_t each = 1, blocks = part.pods / part.block(); each <= blocks; each *= 2) {
    std::vector<std::pair<int64_t, Plan>> found;
    for (Domain c = first; c < end; ++c) {
      Plan here;
      auto price = Select(j, shape, each * part.block(), part.segment_level, c, means, delay, &here);
      if (price) found.push_back({*price, std::move(here)});
    }
    if (static_cast<int32_t>(found.size()) * each < blocks) continue;
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (int32_t i = 0; i * each < blocks; ++i) {
      Plan& here = found[static_cast<size_t>(i)].second;
      plan->nodes.insert(plan->nodes.end(), here.nodes.begin(), here.nodes.end());
      for (JobIndex v : here.victims) {
        if (std::find(plan->victims.begin(), plan->victims.end(), v) == plan->victims.end()) plan->victims.push_back(v);
      }
    }
    return true;
  }
  return false;
}

// Where in the domain to make room, and the victims.
std::optional<Core::Plan> Core::PlanIn(JobIndex j, uint32_t alternative, Level level, Domain domain, Means means,
                                       Micros delay) {
  const Job& job = jobs_[j];
  const Demand& demand = demands_[job.demand].demand;
  const Demand::Part& part = demand.parts[0];
  const ShapeId shape = demand.alternatives[alternative].shapes[0];
  Plan plan;
  const bool possible = part.segment > 1 && part.segment_level < level
                            ? SelectBlocks(j, part, shape, level, domain, means, delay, &plan)
                            : Select(j, shape, part.pods, level, domain, means, delay, &plan).has_value();
  if (!possible || plan.victims.empty()) return std::nullopt;
  // Evicting a gang for one node frees its other nodes too.
  for (JobIndex v : plan.victims) {
    for (const Room& r : jobs_[v].placement.rooms) {
      uint32_t p = cluster_.node(r.node).position;
      if (cluster_.DomainOf(level, p) == domain && cluster_.node(r.node).held == 0 &&
          std::find(plan.nodes.begin(), plan.nodes.end(), r.node) == plan.nodes.end()) {
        plan.nodes.push_back(r.node);
      }
    }
  }
  plan.price = 0;
  plan.delay = delay;
  for (JobIndex v : plan.victims) {
    plan.price +=
        PriceFor(job.estimate.service, means == Means::kMove && Movable(job, victims_[v]) ? 0 : delay, victims_[v]);
  }
  if (means == Means::kReclaim) plan.reason = StopReason::kGuarantee;
  return plan;
}

// Removes the victims and adds the gang, on the journal, then spares victims that need not leave, the most expensive
// first. Returns nullopt and changes nothing when the plan fails.
std::optional<Placement> Core::Prune(JobIndex j, Plan* plan) {
  Job& job = jobs_[j];
  const Demand& demand = demands_[job.demand].demand;
  const uint64_t allowed = AlternativesAllowed(job, demand);
  const size_t begin = cluster_.Mark();
  std::vector<JobIndex> leave = plan->victims;
  auto price = [&](JobIndex v) { return PriceFor(job.estimate.service, plan->delay, victims_[v]); };
  std::stable_sort(leave.begin(), leave.end(), [&](JobIndex a, JobIndex b) { return price(a) > price(b); });
  auto release = [&](JobIndex v) {
    for (const Room& r : jobs_[v].placement.rooms) cluster_.Release(r);
  };
  for (JobIndex v : leave) release(v);
  size_t mark = cluster_.Mark();
  if (!placer_.PlaceOn(demand, plan->nodes, allowed)) {
    cluster_.Undo(begin);
    return std::nullopt;
  }
  cluster_.Undo(mark);
  for (size_t i = 0; i < leave.size() && i < kSpared && leave.size() > 1;) {
    for (const Room& r : jobs_[leave[i]].placement.rooms) cluster_.Take(r);
    mark = cluster_.Mark();
    bool spared = placer_.PlaceOn(demand, plan->nodes, allowed).has_value();
    cluster_.Undo(mark);
    if (spared) {
      leave.erase(leave.begin() + static_cast<int64_t>(i));
    } else {
      release(leave[i]);
      ++i;
    }
  }
  auto placement = placer_.PlaceOn(demand, plan->nodes, allowed);
  if (!placement || !teams_.Admits(job.team, ChargesOf(*placement), job.spec.preemptible).ok) {
    cluster_.Undo(begin);
    return std::nullopt;
  }
  plan->victims = std::move(leave);
  std::vector<const Room*> rooms;
  for (JobIndex v : plan->victims) {
    for (const Room& r : jobs_[v].placement.rooms) rooms.push_back(&r);
  }
  KeepLeftovers(*placement, rooms, plan);
  Resettle(plan);
  plan->price = plan->lost = 0;
  plan->latency = 0;
  // Freed room that the gang does not need serves other waiting jobs. So the gang is charged only with its share of the
  // victims' delay.
  int64_t freed = 0;
  for (JobIndex v : plan->victims) freed += jobs_[v].milli;
  const int64_t used = std::clamp(freed, job.milli, std::max(job.milli, teams_.pending(kRoot)));
  const auto own = static_cast<Micros>(static_cast<__int128>(plan->delay) * (job.milli + 1) / (used + 1));
  for (JobIndex v : plan->victims) {
    plan->price += PriceFor(job.estimate.service, plan->moves.contains(v) ? 0 : own, victims_[v]);
    plan->latency = std::max(plan->latency, victims_[v].latency);
    plan->lost += static_cast<int64_t>(static_cast<__int128>(jobs_[v].milli) * victims_[v].lost / kSecond);
  }
  return placement;
}

// Takes other room for the victims that fit elsewhere, densest first: as close together as they prefer, on GPUs that
// their teams' quotas count the same. Only room that is free now counts, not room that another victim leaves later.
void Core::Resettle(Plan* plan) {
  if (plan->reason == StopReason::kGuarantee) return;  // borrowed room elsewhere is not its team's either
  std::vector<JobIndex> movers = plan->victims;
  std::stable_sort(movers.begin(), movers.end(),
                   [&](JobIndex a, JobIndex b) { return victims_[a].density > victims_[b].density; });
  for (JobIndex v : movers) {
    const Demand& demand = demands_[jobs_[v].demand].demand;
    const size_t mark = cluster_.Mark();
    auto elsewhere = placer_.Place(demand, demand.preferred, uint64_t{1} << jobs_[v].placement.alternative);
    if (!elsewhere) continue;
    if (ChargesOf(*elsewhere) == jobs_[v].charges) {
      plan->moves[v] = std::move(*elsewhere);
    } else {
      cluster_.Undo(mark);
    }
  }
}

bool Core::TryPreempt(JobIndex j, DemandState& state) {
  if (AlternativesAllowed(jobs_[j], state.demand) == 0) return false;
  PrepareVictims();
  if (auto chosen = ChoosePreemption(j, state)) {
    lost_tokens_ -= chosen->plan.lost;
    Claim(j, chosen->plan, std::move(chosen->placement), chosen->terms);
    return true;
  }
  state.no_preemption = true;
  state.no_reclaim.push_back(jobs_[j].team);
  return false;
}

// A failure for one team does not count for another team that is below its guarantee.
bool Core::MayReclaim(TeamId team, const DemandState& state) const {
  return policy_.preemption && teams_.BelowGuarantee(team) &&
         std::find(state.no_reclaim.begin(), state.no_reclaim.end(), team) == state.no_reclaim.end();
}

// The cheapest worthwhile plan; its room is taken on the journal. REQUIRES prices.
std::optional<Core::Chosen> Core::ChoosePreemption(JobIndex j, const DemandState& state) {
  const Job& job = jobs_[j];
  const Demand& demand = state.demand;
  const uint64_t allowed = AlternativesAllowed(job, demand);
  const Micros drained = WaitWithout(demand);
  const Micros delay = std::min(job.estimate.service, drained);
  const Log density = MayTakeTurn(job) ? kTurns : Density(job);
  for (Means means : {Means::kMove, Means::kEvict, Means::kReclaim}) {
    const bool reclaim = means == Means::kReclaim;
    if (state.no_preemption && !reclaim) continue;  // already tried for a denser job
    if (means == Means::kMove && free_milli_ < job.milli) continue;
    std::vector<Plan> plans;
    for (uint32_t a = 0; a < demand.alternatives.size(); ++a) {
      if ((allowed >> a & 1) == 0) continue;
      if (reclaim &&
          !teams_.WithinGuarantee(job.team, {{teams_.Type(demand.alternatives[a].gpu_type), job.milli, 0}})) {
        continue;
      }
      // Domains with the smallest shortage.
      std::vector<std::pair<int32_t, Domain>> domains;
      for (Domain d = 0; d < cluster_.domains(demand.required); ++d) {
        domains.push_back({-cluster_.Slots(demand.alternatives[a].shapes[0], demand.required, d), d});
      }
      size_t few = std::min(domains.size(), static_cast<size_t>(policy_.preempt_domains));
      std::partial_sort(domains.begin(), domains.begin() + static_cast<int64_t>(few), domains.end());
      for (size_t i = 0; i < few; ++i) {
        if (auto plan = PlanIn(j, a, demand.required, domains[i].second, means, delay)) {
          plans.push_back(std::move(*plan));
        }
      }
    }
    std::stable_sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) { return a.price < b.price; });
    for (Plan& plan : plans) {
      size_t mark = cluster_.Mark();
      auto placement = Prune(j, &plan);
      if (!placement) continue;
      const Terms terms = TermsFor(j, plan, drained);
      const bool rightful = std::all_of(plan.victims.begin(), plan.victims.end(), [&](JobIndex v) {
        return plan.moves.contains(v) || Eligible(job, density, reclaim, victims_[v]);
      });
      bool urgent = std::all_of(plan.victims.begin(), plan.victims.end(),
                                [&](JobIndex v) { return ClassOf(jobs_[v]) < ClassOf(job); });
      bool worth = rightful && (MayTakeTurn(job) || static_cast<__int128>(terms.gain) * 1000 >
                                                        static_cast<__int128>(plan.price) * (1000 + policy_.theta));
      bool affordable = urgent || MayTakeTurn(job) || lost_tokens_ >= plan.lost;
      if (worth && plan.reason == StopReason::kWorth && MayTakeTurn(job)) plan.reason = StopReason::kTurn;
      if (reclaim || (worth && affordable)) return Chosen{std::move(plan), std::move(*placement), terms};
      cluster_.Undo(mark);
      break;  // the others cost more
    }
  }
  return std::nullopt;
}

// Evicts from held nodes if only jobs that are cheap to evict still occupy them.
bool Core::TryPreemptBackfill(JobIndex j) {
  PrepareVictims();
  Plan plan;
  plan.reason = StopReason::kBackfill;
  plan.nodes = jobs_[j].hold;
  plan.delay = jobs_[j].estimate.service;
  for (NodeId n : plan.nodes) {
    for (JobIndex v : on_node_[n]) {
      if (jobs_[v].backfill_of != j || ClassOf(jobs_[v]) > ClassOf(jobs_[j])) continue;
      if (v >= victims_.size() || victims_[v].job == kNoJob || victims_[v].id != jobs_[v].spec.id) continue;
      if (std::find(plan.victims.begin(), plan.victims.end(), v) == plan.victims.end()) plan.victims.push_back(v);
    }
  }
  if (plan.victims.empty()) return false;
  auto placement = Prune(j, &plan);
  if (!placement) return false;
  Terms terms;
  terms.price = plan.price;
  terms.lost = plan.lost / 1000;
  lost_tokens_ -= plan.lost;
  Claim(j, plan, std::move(*placement), terms);
  return true;
}

}  // namespace vrun::sched::core
