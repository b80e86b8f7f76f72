// SPDX-License-Identifier: Apache-2.0
// Elastic gangs. Beyond their minimum they hold room that no waiting job could use: at the end of a pass they grow into
// free room, and a job that can use it gets it back for the price of a resize. So a surplus is weighed only by the cost
// of the size change, not by the gang's worth.
#include <algorithm>

#include "sched/engine/engine.h"

namespace vrun::sched::core {

namespace {
// Most blocks to remove in a trial for a gang, and how many of them to try to spare.
constexpr size_t kMostSheds = 256;
constexpr size_t kSpared = 32;
constexpr int64_t kMostWorth = INT64_MAX / 4;
// The node that could not start a pod is avoided (NodeSpec::suspect), but there may be no other.
constexpr Micros kAfterFailedGrowth = 300 * kSecond;

int64_t Scaled(int64_t omega_milli, Micros time) {
  return static_cast<int64_t>(std::min<__int128>(static_cast<__int128>(omega_milli) * time / kSecond, kMostWorth));
}
}  // namespace

const Demand::Part* Core::ElasticPart(const Job& job) const {
  const std::vector<Demand::Part>& parts = demands_[job.demand].demand.parts;
  auto it = std::find_if(parts.begin(), parts.end(), [](const Demand::Part& p) { return p.most > p.pods; });
  return it == parts.end() ? nullptr : &*it;
}

int32_t Core::PodsOf(const Job& job, int32_t role) const {
  return static_cast<int32_t>(std::count(job.placement.roles.begin(), job.placement.roles.end(), role));
}

// How fast the gang works, in thousandths of its speed at full size: proportional to its pods.
int64_t Core::PaceOf(const Job& job) const {
  const Demand::Part* part = ElasticPart(job);
  if (part == nullptr) return 1000;
  const bool runs = job.phase == Phase::kRunning || job.phase == Phase::kStopping;
  const int64_t pods = runs ? PodsOf(job, part->role) : part->pods;
  return std::max<int64_t>(pods * 1000 / part->most, 1);
}

Micros Core::ResizeTime(const Job& job) const {
  const Checkpoint& c = job.spec.checkpoint;
  if (c.resize >= 0) return c.resize;
  return (c.save >= 0 ? c.save : policy_.default_save) + (c.restore >= 0 ? c.restore : policy_.default_restore);
}

std::vector<PodPlace> Core::PodsAt(const Placement& placement, size_t from) const {
  std::vector<PodPlace> pods;
  pods.reserve(placement.rooms.size() - from);
  for (size_t i = from; i < placement.rooms.size(); ++i) {
    const Room& room = placement.rooms[i];
    PodPlace& pod = pods.emplace_back();
    pod.role = placement.roles[i];
    pod.node = cluster_.node(room.node).spec.name;
    pod.gpu_mask = room.mask();
    pod.mig_start = room.mig_start();
    pod.mig = room.profile;
    // A pod that has a share has it of one GPU.
    if (room.gpus() == 1 && room.profile == 0 && room.total_milli() < kMilli) {
      pod.gpu_milli = static_cast<int32_t>(room.total_milli());
    }
  }
  return pods;
}

// REQUIRES running. The caller takes or releases the room.
void Core::SetSize(JobIndex j, Placement placement) {
  Job& job = jobs_[j];
  job.paced = ServedNow(job) - job.served;
  job.paced_since = now_;
  Vacate(j);
  job.placement = std::move(placement);
  Occupy(j);
  job.milli = 0;
  for (const Room& r : job.placement.rooms) job.milli += r.total_milli();
}

// --- growing ---

void Core::GrowElastic() {
  std::vector<std::pair<int64_t, JobIndex>> by_size;
  for (JobIndex j : elastic_) by_size.push_back({PaceOf(jobs_[j]), j});
  // Gangs with the least of what they could have first, then by arrival.
  std::sort(by_size.begin(), by_size.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.first, jobs_[a.second].spec.id) < std::pair(b.first, jobs_[b.second].spec.id);
  });
  hungry_ = false;
  for (const auto& [pace, j] : by_size) {
    GrowOne(j);
    hungry_ = hungry_ || PaceOf(jobs_[j]) < 1000;
  }
}

bool Core::GrowOne(JobIndex j) {
  Job& job = jobs_[j];
  const Demand& demand = demands_[job.demand].demand;
  const Demand::Part* part = ElasticPart(job);
  const int32_t pods = PodsOf(job, part->role);
  const bool fresh = job.started == now_;
  const Micros cost = ResizeTime(job);
  const Micros quantum = static_cast<Micros>(static_cast<__int128>(cost) * policy_.quantum_factor / 1000);
  if (now_ < job.no_growth_before) return false;
  if (pods >= part->most || !job.leaving.empty() || (!fresh && now_ - job.paced_since < quantum)) return false;
  Estimate(j);
  const size_t mark = cluster_.Mark();
  const size_t from = job.placement.rooms.size();
  Placement grown = job.placement;
  int32_t now = pods;
  while (now < part->most) {
    const size_t one = cluster_.Mark(), size = grown.rooms.size();
    if (!placer_.Grow(demand, static_cast<size_t>(part - demand.parts.data()), &grown)) break;
    Placement more{{grown.rooms.begin() + static_cast<int64_t>(from), grown.rooms.end()}, {}, 0};
    // May also use the room left idle for inference, which gets it back on the same step.
    if (!teams_.Admits(job.team, ChargesOf(more), job.spec.preemptible).ok) {
      cluster_.Undo(one);
      grown.rooms.resize(size);
      grown.roles.resize(size);
      break;
    }
    now += part->block();
  }
  // The remaining run time shrinks in proportion to the growth.
  const auto sooner = static_cast<Micros>(static_cast<__int128>(job.estimate.expected) * (now - pods) / now);
  const bool worth = static_cast<__int128>(sooner) * 1000 > static_cast<__int128>(cost) * (1000 + policy_.theta);
  if (now == pods || (!fresh && !worth)) {
    cluster_.Undo(mark);
    return false;
  }
  teams_.Release(job.team, job.charges, job.spec.preemptible, now_);
  SetSize(j, std::move(grown));
  job.charges = ChargesOf(job.placement);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  Note(j, Decision::Kind::kGrown, 0, {});
  TellGrown(j, from);
  return true;
}

// A gang that started in this step starts with the new pods.
void Core::TellGrown(JobIndex j, size_t from) {
  const Job& job = jobs_[j];
  std::vector<PodPlace> more = PodsAt(job.placement, from);
  for (Action& action : actions_) {
    Place* place = std::get_if<Place>(&action);
    if (place == nullptr || place->job != job.spec.id) continue;
    place->pods.insert(place->pods.end(), more.begin(), more.end());
    return;
  }
  Resize grown;
  grown.job = job.spec.id;
  grown.pods = std::move(more);
  grown.grow = true;
  actions_.push_back(std::move(grown));
}

// --- shrinking ---

// Blocks in the domain beyond their gangs' minimum, those on the emptiest nodes first, so that few nodes are cleared.
// Each gang gives its last blocks, at most its surplus, and never the first one: the others meet at its first pod.
std::vector<Core::Shed> Core::SurplusFor(const Job& beneficiary, Level level, Domain domain) const {
  std::vector<std::pair<std::pair<int64_t, NodeId>, Shed>> found;
  for (JobIndex v : elastic_) {
    const Job& job = jobs_[v];
    const Demand::Part& part = *ElasticPart(job);
    int32_t surplus = (PodsOf(job, part.role) - part.pods) / part.block();
    if (surplus <= 0 || !job.leaving.empty() || ClassOf(job) > ClassOf(beneficiary)) continue;
    if (teams_.Protected(job.team, job.charges, beneficiary.team)) continue;
    std::vector<size_t> mine;
    for (size_t i = 0; i < job.placement.rooms.size(); ++i) {
      if (job.placement.roles[i] == part.role) mine.push_back(i);
    }
    const auto block = static_cast<size_t>(part.block());
    for (size_t end = mine.size(); end >= 2 * block && surplus > 0; end -= block) {
      Shed shed{v, {mine.begin() + static_cast<int64_t>(end - block), mine.begin() + static_cast<int64_t>(end)}};
      const NodeId node = job.placement.rooms[shed.rooms[0]].node;
      if (cluster_.DomainOf(level, cluster_.node(node).position) != domain) continue;
      --surplus;
      found.push_back({{-cluster_.node(node).free_milli_total(), node}, std::move(shed)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Shed> sheds;
  for (auto& [key, shed] : found) {
    if (sheds.size() < kMostSheds) sheds.push_back(std::move(shed));
  }
  return sheds;
}

// Removes blocks until the gang fits, then gives back blocks that were not needed. `sheds`: in, the available blocks;
// out, the needed ones. Changes nothing when it returns nullopt.
std::optional<Placement> Core::PlaceByShrinking(JobIndex j, uint32_t alternative, Level level, Domain domain,
                                                std::vector<Shed>* sheds) {
  const Demand& demand = demands_[jobs_[j].demand].demand;
  const size_t begin = cluster_.Mark();
  auto each = [&](const Shed& shed, auto change) {
    for (size_t i : shed.rooms) change(jobs_[shed.job].placement.rooms[i]);
  };
  auto release = [&](const Room& r) { cluster_.Release(r); };
  auto take = [&](const Room& r) { cluster_.Take(r); };
  auto fits = [&] {
    const size_t mark = cluster_.Mark();
    const bool fit = placer_.PlaceIn(demand, alternative, level, domain).has_value();
    cluster_.Undo(mark);
    return fit;
  };
  size_t used = 0;
  bool enough = false;
  while (used < sheds->size() && !enough) {
    each((*sheds)[used++], release);
    enough = fits();
  }
  if (!enough) {
    cluster_.Undo(begin);
    return std::nullopt;
  }
  sheds->resize(used);
  for (size_t i = 0, tries = 0; i < sheds->size() && tries < kSpared && sheds->size() > 1; ++tries) {
    each((*sheds)[i], take);
    if (fits()) {
      sheds->erase(sheds->begin() + static_cast<int64_t>(i));
    } else {
      each((*sheds)[i++], release);
    }
  }
  return placer_.PlaceIn(demand, alternative, level, domain);
}

bool Core::TryShrink(JobIndex j, DemandState& state) {
  Job& job = jobs_[j];
  const Demand& demand = state.demand;
  if (elastic_.empty()) return false;
  const uint64_t allowed = AlternativesAllowed(job, demand);
  if (allowed == 0) return false;
  PrepareVictims();
  const Micros without = WaitWithout(demand);
  for (uint32_t a = 0; a < demand.alternatives.size(); ++a) {
    if ((allowed >> a & 1) == 0) continue;
    std::vector<std::pair<int32_t, Domain>> domains;  // with the smallest shortage
    for (Domain d = 0; d < cluster_.domains(demand.required); ++d) {
      domains.push_back({-cluster_.Slots(demand.alternatives[a].shapes[0], demand.required, d), d});
    }
    const size_t few = std::min(domains.size(), static_cast<size_t>(policy_.preempt_domains));
    std::partial_sort(domains.begin(), domains.begin() + static_cast<int64_t>(few), domains.end());
    for (size_t i = 0; i < few; ++i) {
      const size_t mark = cluster_.Mark();
      std::vector<Shed> sheds = SurplusFor(job, demand.required, domains[i].second);
      auto placement = PlaceByShrinking(j, a, demand.required, domains[i].second, &sheds);
      if (!placement) continue;
      Plan plan;
      Terms terms;
      std::vector<const Room*> freed;
      plan.price = 0;
      for (const Shed& shed : sheds) {
        Job& v = jobs_[shed.job];
        std::vector<size_t>& rooms = plan.sheds[shed.job];
        if (rooms.empty()) {
          const Micros time = ResizeTime(v);
          plan.price = std::min(plan.price + Scaled(Exp2Milli(WaitCost(v)), time), kMostWorth);
          plan.lost += static_cast<int64_t>(static_cast<__int128>(v.milli) * time / kSecond);
        }
        rooms.insert(rooms.end(), shed.rooms.begin(), shed.rooms.end());
        for (size_t r : shed.rooms) freed.push_back(&v.placement.rooms[r]);
      }
      for (auto& [v, rooms] : plan.sheds) std::sort(rooms.begin(), rooms.end());
      terms.wait_without = without;
      terms.gain = Scaled(Exp2Milli(WaitCost(job)), without);
      terms.price = plan.price;
      terms.lost = plan.lost / 1000;
      const bool worth =
          static_cast<__int128>(terms.gain) * 1000 > static_cast<__int128>(plan.price) * (1000 + policy_.theta);
      if (!worth || !teams_.Admits(job.team, ChargesOf(*placement), job.spec.preemptible).ok) {
        cluster_.Undo(mark);
        continue;
      }
      KeepLeftovers(*placement, freed, &plan);
      lost_tokens_ -= plan.lost;
      Claim(j, plan, std::move(*placement), terms);
      return true;
    }
  }
  return false;
}

// The cluster already shows the state without these pods; they are in `leaving` until they are gone.
void Core::Shrink(JobIndex v, const std::vector<size_t>& rooms, JobIndex beneficiary, const Terms& terms) {
  Job& job = jobs_[v];
  Placement rest{{}, {}, job.placement.alternative};
  for (size_t i = 0; i < job.placement.rooms.size(); ++i) {
    const bool leaves = std::binary_search(rooms.begin(), rooms.end(), i);
    (leaves ? job.leaving : rest.rooms).push_back(job.placement.rooms[i]);
    (leaves ? job.leaving_roles : rest.roles).push_back(job.placement.roles[i]);
  }
  job.shrink_for = beneficiary;
  SetSize(v, std::move(rest));
  Note(v, Decision::Kind::kShrunk, jobs_[beneficiary].spec.id, terms);
  Resize shrunk;
  shrunk.job = job.spec.id;
  shrunk.pods = PodsAt({job.leaving, job.leaving_roles, 0}, 0);
  shrunk.beneficiary = jobs_[beneficiary].spec.id;
  shrunk.terms = terms;
  actions_.push_back(std::move(shrunk));
}

void Core::On(const JobResized& e) {
  const JobIndex j = IndexOf(e.job);
  if (j == kNoJob || jobs_[j].leaving.empty()) return;
  Job& job = jobs_[j];
  teams_.Release(job.team, job.charges, job.spec.preemptible, now_);
  job.charges = ChargesOf(job.placement);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  if (job.shrink_for == kNoJob) {
    for (const Room& r : job.leaving) cluster_.Release(r);
  }
  job.leaving.clear();
  job.leaving_roles.clear();
  VictimGone(std::exchange(job.shrink_for, kNoJob));
}

void Core::On(const PodsGone& e) {
  const JobIndex j = IndexOf(e.job);
  if (j == kNoJob || jobs_[j].phase != Phase::kRunning) return;
  Job& job = jobs_[j];
  const std::vector<PodPlace> pods = PodsAt(job.placement, 0);
  Placement rest{{}, {}, job.placement.alternative};
  std::vector<Room> gone;
  // Pods without GPUs on the same node look alike: each that is named is one of them.
  std::vector<PodPlace> named = e.pods;
  for (size_t i = 0; i < pods.size(); ++i) {
    const Room& room = job.placement.rooms[i];
    if (const auto it = std::find(named.begin(), named.end(), pods[i]); it != named.end()) {
      named.erase(it);
      gone.push_back(room);
      continue;
    }
    rest.rooms.push_back(room);
    rest.roles.push_back(job.placement.roles[i]);
  }
  if (gone.empty() || rest.rooms.empty()) return;
  teams_.Release(job.team, job.charges, job.spec.preemptible, now_);
  for (const Room& r : gone) cluster_.Release(r);
  SetSize(j, std::move(rest));
  Placement charged = job.placement;
  charged.rooms.insert(charged.rooms.end(), job.leaving.begin(), job.leaving.end());
  job.charges = ChargesOf(charged);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  job.no_growth_before = now_ + kAfterFailedGrowth;
}

}  // namespace vrun::sched::core
