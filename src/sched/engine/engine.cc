// SPDX-License-Identifier: Apache-2.0
#include "sched/engine/engine.h"

#include <algorithm>
#include <numeric>

namespace vrun::sched::core {

// --- public functions ---

State::State(Policy policy) : core_(std::make_unique<Core>(policy)) {}
State::~State() = default;
State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;

std::vector<Action> Step(State& state, std::span<const Event> events, Micros now) {
  return state.core().Step(events, now);
}
Micros NextWake(const State& state) { return state.core().NextWake(); }

Core::Core(Policy policy) : policy_(policy) {}

std::vector<Action> Core::Step(std::span<const Event> events, Micros now) {
  now_ = std::max(now_, now);
  actions_.clear();
  fresh_.clear();
  // An event may start a job at once, and time may have passed since the last step.
  if (!windows_.empty() && now_ >= maintenance_due_) LimitNodes();
  for (const Event& event : events) {
    dirty_ = dirty_ || !std::holds_alternative<Tick>(event);
    std::visit([this](const auto& e) { On(e); }, event);
  }
  cluster_.Settle();
  on_node_.resize(cluster_.size());
  if (!windows_.empty()) ServeMaintenance();
  Wake();
  for (JobIndex j : std::vector<JobIndex>(fresh_)) {
    if (jobs_[j].asked) Admit(j);
  }
  bool due = now_ - last_pass_ >= policy_.pass_interval;
  bool urged = (waiting_ > 0 || hungry_ || !promised_.empty()) && now_ - last_pass_ >= policy_.urge_interval;
  if (urged || (due && dirty_)) {
    Pass();
  } else {
    Fast();
  }
  cluster_.Commit();
  return std::move(actions_);
}

Micros Core::NextWake() const {
  Micros next = kNever;
  if (dirty_) next = last_pass_ + policy_.pass_interval;
  if (waiting_ > 0 || hungry_ || !promised_.empty()) next = std::min(next, last_pass_ + policy_.urge_interval);
  if (!windows_.empty()) next = std::min(next, maintenance_due_);
  for (JobIndex j : not_yet_) {
    // A job whose begin time has passed waits for other jobs, and their end is an event.
    if (jobs_[j].spec.begin_after > now_) next = std::min(next, jobs_[j].spec.begin_after);
  }
  return next;
}

const Job* Core::Find(JobId id) const {
  JobIndex j = IndexOf(id);
  return j == kNoJob ? nullptr : &jobs_[j];
}

JobIndex Core::IndexOf(JobId id) const {
  auto it = by_id_.find(id);
  return it == by_id_.end() ? kNoJob : it->second;
}

// --- needs, interned: jobs with equal needs share one record and what was found out about it ---

uint32_t Core::Intern(const JobSpec& spec) {
  std::string key;
  auto add = [&key](const std::string& s) { key.append(std::to_string(s.size())).append(1, ':').append(s); };
  auto number = [&key](int64_t n) { key.append(std::to_string(n)).append(1, ';'); };
  add(spec.pool);
  for (const auto* list : {&spec.gpu_types, &spec.labels, &spec.tolerations, &spec.nodes, &spec.excluded}) {
    for (const std::string& s : *list) add(s);
    key += '|';
  }
  number(static_cast<int64_t>(spec.required));
  number(static_cast<int64_t>(spec.preferred));
  number(RunsOf(spec));
  // Jobs that may use the room left idle for inference are tried separately from those that may not.
  number(spec.klass == Class::kInference || (spec.klass == Class::kScavenger && spec.preemptible));
  for (const Role& r : spec.roles) {
    for (int64_t n : {int64_t{r.pods}, int64_t{r.request.gpus}, int64_t{r.request.gpu_milli}, r.request.milli_cpus,
                      r.request.memory_bytes, static_cast<int64_t>(r.request.sharing), int64_t{r.request.mig},
                      int64_t{r.min_pods}, int64_t{r.segment}, static_cast<int64_t>(r.segment_level), int64_t{r.spread},
                      int64_t{r.request.nics}, static_cast<int64_t>(r.request.sharers), r.request.gpu_memory}) {
      number(n);
    }
  }
  auto [it, fresh] = demand_by_key_.try_emplace(std::move(key), 0);
  if (!fresh) {
    ++demands_[it->second].references;
    return it->second;
  }
  uint32_t id = static_cast<uint32_t>(demands_.size());
  if (free_demands_.empty()) {
    demands_.emplace_back();
  } else {
    id = free_demands_.back();
    free_demands_.pop_back();
  }
  it->second = id;
  DemandState& state = demands_[id];
  state = {};
  state.references = 1;
  state.key = it->first;
  state.like.pool = spec.pool;
  state.like.labels = spec.labels;
  state.like.tolerations = spec.tolerations;
  state.like.nodes = spec.nodes;
  state.like.excluded = spec.excluded;
  state.like.preemptible = spec.preemptible;
  state.like.may_meet_maintenance = spec.may_meet_maintenance;
  state.like.limit = spec.limit;
  Demand& d = state.demand;
  d.required = spec.required;
  d.preferred = std::min(spec.preferred, spec.required);
  for (size_t i = 0; i < spec.roles.size(); ++i) {
    const Role& r = spec.roles[i];
    d.parts.push_back({r.request, r.least(), static_cast<int32_t>(i), r.pods, r.segment,
                       std::min(r.segment_level, spec.required), r.spread});
  }
  std::stable_sort(d.parts.begin(), d.parts.end(), [](const Demand::Part& a, const Demand::Part& b) {
    return std::pair(a.request.total_milli(), a.pods) > std::pair(b.request.total_milli(), b.pods);
  });
  std::vector<std::string> types = spec.gpu_types;
  if (types.empty()) types.push_back("");
  for (const std::string& type : types) {
    Demand::Alternative alternative{type, {}};
    for (const Demand::Part& p : d.parts) {
      alternative.shapes.push_back(ShapeOf(spec, p.request, type));
    }
    d.alternatives.push_back(std::move(alternative));
  }
  return id;
}

void Core::DropDemand(uint32_t id) {
  DemandState& state = demands_[id];
  if (--state.references > 0) return;
  for (const Demand::Alternative& a : state.demand.alternatives) {
    for (ShapeId s : a.shapes) cluster_.Drop(s);
  }
  demand_by_key_.erase(state.key);
  state = {};
  free_demands_.push_back(id);
}

// --- events ---

void Core::On(const NodeUp& e) {
  if (!Validate(e.node)) return;
  // Claims and holds were made for the node as it was before the change.
  NodeId known = cluster_.Find(e.node.name);
  if (known != kNoNode && cluster_.node(known).spec != e.node) NobodyStartsOn(known);
  cluster_.Up(e.node);
}

void Core::On(const NodeLost& e) {
  if (NodeId n = cluster_.Find(e.name); n != kNoNode) NodeGone(n);
}

void Core::On(const NodeDrained& e) {
  if (NodeId n = cluster_.Find(e.name); n != kNoNode) NodeGone(n);
}

void Core::NodeGone(NodeId node) {
  cluster_.Down(node);
  NobodyStartsOn(node);
}

// Cancels starts on this node: claims whose victims are still leaving, moves to it, and holds on it.
void Core::NobodyStartsOn(NodeId node) {
  for (JobIndex j : std::vector<JobIndex>(holders_)) {
    if (std::find(jobs_[j].hold.begin(), jobs_[j].hold.end(), node) != jobs_[j].hold.end()) DropHold(j);
  }
  for (JobIndex j = 0; j < jobs_.size(); ++j) {
    Job& job = jobs_[j];
    auto there = [&](const Placement& p) {
      return std::any_of(p.rooms.begin(), p.rooms.end(), [&](const Room& r) { return r.node == node; });
    };
    if (there(job.move_to)) StayAway(j);
    if (job.phase != Phase::kClaiming || !there(job.placement)) continue;
    Unclaim(j);
    MakePending(j);
  }
}

void Core::On(const TeamSet& e) { teams_.Set(e.team); }

void Core::On(const JobSubmitted& e) {
  if (by_id_.contains(e.job.id) || !Validate(e.job)) return;
  JobIndex j = static_cast<JobIndex>(jobs_.size());
  if (free_jobs_.empty()) {
    jobs_.emplace_back();
    stamps_.push_back(0);
  } else {
    j = free_jobs_.back();
    free_jobs_.pop_back();
  }
  by_id_[e.job.id] = j;
  Job& job = jobs_[j];
  job = {};
  job.spec = e.job;
  job.demand = Intern(e.job);
  job.team = teams_.Find(e.job.team);
  job.groups = history_.Join(e.job, e.job.submitted > 0 ? e.job.submitted : now_);
  job.milli = demands_[job.demand].demand.total_milli();
  const Demand& demand = demands_[job.demand].demand;
  for (const Demand::Part& p : demand.parts) fragmentation_.Arrived(p.request, e.job.gpu_types, p.pods);
  job.asked = e.job.hard_deadline;
  if (e.job.klass == Class::kInference && job.milli > 0) {
    inference_seen_ = true;
    headroom_.Change(job.milli, now_);
  }
  if (MayBegin(job)) {
    Micros submitted = std::max(e.job.submitted, e.job.begin_after);
    job.waited = submitted > 0 ? std::max<Micros>(now_ - submitted, 0) : 0;
    MakePending(j);
    fresh_.push_back(j);
  } else {
    job.phase = Phase::kNotYet;
    not_yet_.push_back(j);
  }
}

namespace {

// The request of a pod that has its place.
Request AsGiven(Request r, const PodPlace& pod) {
  if (!r.open()) return r;
  r.gpu_milli = pod.gpu_milli;
  r.mig = pod.mig;
  r.gpus = pod.gpu_milli == 0 && pod.mig == 0 ? 1 : 0;
  if (r.gpu_milli == 0) r.sharers = 0;
  return r;
}

}  // namespace

void Core::On(const JobStarted& e) {
  JobIndex j = IndexOf(e.job);
  if (j == kNoJob || (jobs_[j].phase != Phase::kPending && jobs_[j].phase != Phase::kNotYet)) return;
  Job& job = jobs_[j];
  if (job.phase == Phase::kPending) RemovePending(j);
  std::erase(not_yet_, j);
  Placement placement;
  for (const PodPlace& pod : e.pods) {
    if (pod.role < 0 || static_cast<size_t>(pod.role) >= job.spec.roles.size()) continue;
    const Request r = AsGiven(job.spec.roles[pod.role].request, pod);
    Room room = RoomOf(r, cluster_.Name(pod.node));
    const mig::Model model = cluster_.node(room.node).mig_model;
    for (int i = 0; i < kMaxGpus; ++i) {
      if ((pod.gpu_mask >> i & 1) == 0) continue;
      room.milli[i] = kMilli;
      if (r.slice()) TakeSlice(r, model, i, mig::At(model, r.mig, pod.mig_start, 0), &room);
    }
    cluster_.Take(room);
    placement.rooms.push_back(room);
    placement.roles.push_back(pod.role);
  }
  on_node_.resize(cluster_.size());
  job.placement = std::move(placement);
  job.charges = ChargesOf(job.placement);
  teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
  job.phase = Phase::kRunning;
  job.started = job.saved = job.paced_since = std::min(e.since, now_);
  if (ElasticPart(job) != nullptr) {
    job.milli = 0;
    for (const Room& r : job.placement.rooms) job.milli += r.total_milli();
  }
  Estimate(j);
  Occupy(j);
}

void Core::On(const JobSaved& e) {
  JobIndex j = IndexOf(e.job);
  if (j == kNoJob || (jobs_[j].phase != Phase::kRunning && jobs_[j].phase != Phase::kStopping)) return;
  Job& job = jobs_[j];
  job.saved = std::clamp(e.at, job.saved, now_);
  if (e.took > 0) job.save_time = job.save_time < 0 ? e.took : (3 * job.save_time + e.took) / 4;
}

void Core::On(const JobStopped& e) {
  JobIndex j = IndexOf(e.job);
  if (j == kNoJob || (jobs_[j].phase != Phase::kRunning && jobs_[j].phase != Phase::kStopping)) return;
  Job& job = jobs_[j];
  job.served = std::max<Micros>(ServedNow(job) - e.lost * PaceOf(job) / 1000, 0);
  Leave(j);
  if (job.move_to.rooms.empty()) {
    MakePending(j);
  } else {
    job.placement = std::exchange(job.move_to, {});
    job.charges = ChargesOf(job.placement);
    teams_.Take(job.team, job.charges, job.spec.preemptible, now_);
    Begin(j);
  }
}

void Core::StayAway(JobIndex j) {
  for (const Room& r : jobs_[j].move_to.rooms) cluster_.Release(r);
  jobs_[j].move_to = {};
}

void Core::On(const JobEnded& e) {
  JobIndex j = IndexOf(e.job);
  if (j == kNoJob) return;
  Job& job = jobs_[j];
  switch (job.phase) {
    case Phase::kNone: return;
    case Phase::kNotYet: std::erase(not_yet_, j); break;
    case Phase::kPending: RemovePending(j); break;
    case Phase::kClaiming: Unclaim(j); break;
    case Phase::kRunning:
    case Phase::kStopping:
      if (e.completed) history_.Completed(job.groups, ServedNow(job));
      StayAway(j);
      Leave(j);
  }
  Forget(j);
  if (!e.completed || !e.succeeded) Doom(e.job);
}

void Core::Doom(JobId dependency) {
  for (JobIndex j : not_yet_) {
    Job& job = jobs_[j];
    const std::vector<JobId>& after = job.spec.after_ok;
    if (job.doomed_by != 0 || std::find(after.begin(), after.end(), dependency) == after.end()) continue;
    job.doomed_by = dependency;
    actions_.push_back(Doomed{job.spec.id, dependency});
  }
}

void Core::Forget(JobIndex j) {
  Job& job = jobs_[j];
  DropHold(j);
  if (job.spec.klass == Class::kInference && job.milli > 0) headroom_.Change(-job.milli, now_);
  DropDemand(job.demand);
  history_.Leave(job.groups);
  by_id_.erase(job.spec.id);
  job = {};
  free_jobs_.push_back(j);
}

// --- pending ---

bool Core::MayBegin(const Job& job) const {
  auto known = [this](JobId id) { return by_id_.contains(id); };
  return job.spec.begin_after <= now_ && job.doomed_by == 0 &&
         std::none_of(job.spec.after.begin(), job.spec.after.end(), known) &&
         std::none_of(job.spec.after_ok.begin(), job.spec.after_ok.end(), known);
}

void Core::Wake() {
  std::erase_if(not_yet_, [this](JobIndex j) {
    if (!MayBegin(jobs_[j])) return false;
    MakePending(j);
    fresh_.push_back(j);
    dirty_ = true;
    return true;
  });
}

void Core::MakePending(JobIndex j) {
  Job& job = jobs_[j];
  job.phase = Phase::kPending;
  job.waiting_since = now_ - job.waited;
  Estimate(j);
  if (++next_stamp_ == 0) ++next_stamp_;
  stamps_[j] = next_stamp_;
  pending_sorted_ = pending_sorted_ && (pending_.empty() || pending_.back().id < job.spec.id);
  pending_.push_back({job.spec.id, j, job.demand, job.team, next_stamp_, TakesTurns(job), Base(job), InverseOf(job),
                      job.waiting_since / 1000, StarvationWait(job) / 1000});
  ++waiting_;
  teams_.Demand(job.team, job.milli);
}

void Core::RemovePending(JobIndex j) {
  stamps_[j] = 0;
  --waiting_;
  jobs_[j].waited = now_ - jobs_[j].waiting_since;
  teams_.Demand(jobs_[j].team, -jobs_[j].milli);
}

// --- room ---

void Core::Occupy(JobIndex j) {
  running_.push_back(j);
  if (ElasticPart(jobs_[j]) != nullptr) elastic_.push_back(j);
  for (const Room& r : jobs_[j].placement.rooms) {
    std::vector<JobIndex>& there = on_node_[r.node];
    if (std::find(there.begin(), there.end(), j) == there.end()) there.push_back(j);
  }
}

void Core::Vacate(JobIndex j) {
  // The last entry takes the place. The order does not matter, but it must be deterministic.
  auto it = std::find(running_.begin(), running_.end(), j);
  *it = running_.back();
  running_.pop_back();
  std::erase(elastic_, j);
  for (const Room& r : jobs_[j].placement.rooms) std::erase(on_node_[r.node], j);
}

// Removes a running or stopping job from its room.
void Core::Leave(JobIndex j) {
  Job& job = jobs_[j];
  if (job.phase == Phase::kRunning) Vacate(j);
  teams_.Release(job.team, job.charges, job.spec.preemptible, now_);
  if (job.beneficiary == kNoJob) {
    for (const Room& r : job.placement.rooms) cluster_.Release(r);
  }
  if (job.shrink_for == kNoJob) {
    for (const Room& r : job.leaving) cluster_.Release(r);
  }
  NoteReturn(&job);
  EndTurn(&job);
  job.placement = {};
  job.leaving.clear();
  job.leaving_roles.clear();
  job.charges.clear();
  job.backfill_of = kNoJob;
  job.milli = demands_[job.demand].demand.total_milli();
  VictimGone(std::exchange(job.beneficiary, kNoJob));
  VictimGone(std::exchange(job.shrink_for, kNoJob));
}

// A claim starts when its last victim is gone.
void Core::VictimGone(JobIndex to) {
  if (to == kNoJob || --jobs_[to].victims_left > 0) return;
  Job& claimer = jobs_[to];
  for (const Room& r : claimer.leftovers) cluster_.Release(r);
  claimer.leftovers.clear();
  if (OutstaysWindow(claimer)) {  // leaving took too long for the time until a maintenance window
    Unclaim(to);
    MakePending(to);
    dirty_ = true;
    return;
  }
  claimer.waited = now_ - claimer.waiting_since;
  Begin(to);
}

// The victims leave all the same, and until then they own their room again.
void Core::Unclaim(JobIndex j) {
  Job& job = jobs_[j];
  for (const Room& r : job.placement.rooms) cluster_.Release(r);
  for (const Room& r : job.leftovers) cluster_.Release(r);
  for (Job& v : jobs_) {
    if (v.phase == Phase::kStopping && v.beneficiary == j) {
      for (const Room& r : v.placement.rooms) cluster_.Take(r);
      v.beneficiary = kNoJob;
    }
    if (!v.leaving.empty() && v.shrink_for == j) {
      for (const Room& r : v.leaving) cluster_.Take(r);
      v.shrink_for = kNoJob;
    }
  }
  teams_.Release(job.team, job.charges, job.spec.preemptible, now_);
  job.leftovers.clear();
  job.taken_from.clear();
  job.victims_left = 0;
  job.placement = {};
  job.charges.clear();
  job.waited = now_ - job.waiting_since;
}

std::vector<Teams::Charge> Core::ChargesOf(const Placement& placement) {
  std::vector<Teams::Charge> charges;
  for (const Room& r : placement.rooms) {
    int64_t milli = r.total_milli();
    if (milli == 0) continue;
    const NodeSpec& node = cluster_.node(r.node).spec;
    TypeId type = teams_.Type(node.gpu_type);
    auto same = std::find_if(charges.begin(), charges.end(), [&](const Teams::Charge& c) {
      return c.type == type && c.price_milli == node.price_milli;
    });
    if (same == charges.end()) {
      charges.push_back({type, milli, node.price_milli});
    } else {
      same->milli += milli;
    }
  }
  return charges;
}

// --- time ---

Micros Core::ServedNow(const Job& job) const {
  bool runs = job.phase == Phase::kRunning || job.phase == Phase::kStopping;
  return job.served + (runs ? job.paced + (now_ - job.paced_since) * PaceOf(job) / 1000 : 0);
}

void Core::Estimate(JobIndex j) {
  Job& job = jobs_[j];
  job.estimate = history_.Remaining(job.spec, job.groups, job.milli, ServedNow(job));
  if (const int64_t pace = PaceOf(job); pace < 1000) {
    job.estimate.rank += Log2(1000) - Log2(static_cast<uint64_t>(pace));
    for (Micros* t : {&job.estimate.service, &job.estimate.expected, &job.estimate.late}) *t = *t / pace * 1000;
  }
  if (job.spec.limit > 0) {
    const bool runs = job.phase == Phase::kRunning || job.phase == Phase::kStopping;
    const Micros left = std::max(job.spec.limit - (runs ? now_ - job.started : 0), kSecond);
    job.estimate.expected = std::min(job.estimate.expected, left);
    // Without any knowledge of such jobs, only the limit is certain.
    job.estimate.late = job.estimate.source == 4 ? left : std::min(job.estimate.late, left);
  }
}

bool Core::Consistent() const {
  if (!cluster_.Recount() || !teams_.Consistent()) return false;
  // Free and taken room must add up to the nodes.
  std::vector<int64_t> taken(cluster_.size());
  auto add = [&](const std::vector<Room>& rooms) {
    for (const Room& r : rooms) taken[r.node] += r.total_milli();
  };
  for (const Job& job : jobs_) {
    bool pods = job.phase == Phase::kRunning || job.phase == Phase::kClaiming ||
                (job.phase == Phase::kStopping && job.beneficiary == kNoJob);
    if (pods) add(job.placement.rooms);
    add(job.leftovers);
    add(job.move_to.rooms);
    if (job.shrink_for == kNoJob) add(job.leaving);
  }
  for (NodeId n = 0; n < cluster_.size(); ++n) {
    const Cluster::Node& node = cluster_.node(n);
    int64_t free = std::accumulate(node.free_milli.begin(), node.free_milli.end(), int64_t{0});
    if (free + taken[n] != int64_t{node.spec.gpus} * kMilli) return false;
  }
  return true;
}

}  // namespace vrun::sched::core
