// SPDX-License-Identifier: Apache-2.0
// The core's implementation: the jobs and the passes over them. engine.cc applies events, pass.cc orders and places,
// preempt.cc prices and plans evictions, claim.cc carries them out, holds.cc keeps room for gangs that waited too long,
// turns.cc lets large gangs run that waited too long,
// inference.cc serves inference on every step, elastic.cc grows and shrinks gangs, maintenance.cc clears nodes ahead of
// a window, explain.cc and whatif.cc explain.
//
// Lifetimes: a job has one index from submission to its end. Indexes are reused, ids never. The cluster accounts a
// job's room from its placement (running), or from the moment its victims are told to leave (claiming). From then on
// the cluster shows the state after the victims have left. Room that the victims still use beyond the claim is blocked
// as `leftovers` until the last of them is gone.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "sched/core.h"
#include "sched/engine/explain.h"
#include "sched/model/cluster.h"
#include "sched/model/windows.h"
#include "sched/place/fragmentation.h"
#include "sched/place/headroom.h"
#include "sched/place/placement.h"
#include "sched/share/history.h"
#include "sched/share/teams.h"

namespace vrun::sched::core {

using JobIndex = uint32_t;
constexpr JobIndex kNoJob = UINT32_MAX;

enum class Phase : uint8_t { kNone, kNotYet, kPending, kClaiming, kRunning, kStopping };

struct Job {
  JobSpec spec;
  Phase phase = Phase::kNone;
  uint32_t demand = 0;
  TeamId team = 0;
  History::Groups groups{};
  int64_t milli = 0;  // of all its pods, or of those it starts with

  Micros waiting_since = 0;  // earlier waits are added by moving it back: now - this is the total wait
  Micros waited = 0;         // before the present run
  Micros turn_ends = 0;      // of the turn that it has because it starved: it is not disturbed before this time
  Micros served = 0;         // run time that counts, before the present run
  Micros started = 0;        // begin of the present run
  Micros saved = 0;          // state up to this time is safe; never before `started`
  Micros save_time = -1;     // learned
  int32_t preemptions = 0;
  History::Estimate estimate;

  // For a running elastic gang:
  Micros paced_since = 0;     // begin of its present size; for other jobs: their start
  Micros paced = 0;           // work of the present run before that, in time at full size
  std::vector<Room> leaving;  // removed by a Resize but still occupied
  std::vector<int32_t> leaving_roles;
  JobIndex shrink_for = kNoJob;  // job whose claim includes that room
  Micros no_growth_before = 0;   // because pods that were added could not start

  Placement placement;  // claiming, running, stopping
  std::vector<Teams::Charge> charges;
  std::vector<Room> leftovers;    // claiming
  int32_t victims_left = 0;       // claiming
  JobIndex beneficiary = kNoJob;  // stopping: job whose claim includes its room
  std::vector<JobId> taken_from;  // of an inference job: jobs that made room for it
  Placement move_to;              // stopping: room taken for it, where it restarts as soon as it has stopped
  JobIndex backfill_of = kNoJob;  // runs in room that is held for that job
  std::vector<NodeId> hold;       // nodes held for it
  Micros hold_start = 0;          // expected start
  Micros no_hold_before = 0;
  bool asked = false;            // has a hard deadline that was not answered yet
  bool promised = false;         // its hard deadline was admitted
  JobId doomed_by = 0;           // the dependency that failed, so this job never starts
  Level wish = Level::kCluster;  // loosest level that the job accepts now

  Teams::Verdict refused;  // the quota refusal for the GPU type that it would have been placed on
  std::vector<Decision> decisions;
};

class Core {
 public:
  explicit Core(Policy policy);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  std::vector<Action> Step(std::span<const Event> events, Micros now);
  Micros NextWake() const;

  const Policy& policy() const { return policy_; }
  const Cluster& cluster() const { return cluster_; }
  const Teams& teams() const { return teams_; }
  const Job* Find(JobId id) const;
  std::optional<std::vector<Blocker>> Blockers(JobId id) const;
  Status Feasible(const JobSpec& spec) const;
  std::vector<JobId> Waiting() const;
  std::vector<JobId> RunningOn(const std::string& node) const;
  std::vector<Counterfactual> WhatIf(JobId id);
  std::optional<Forecast> ForecastFor(JobId id);
  Result<Trial> TryJob(const JobSpec& spec);
  // Whether room, usage and phases agree with each other; for tests.
  bool Consistent() const;

 private:
  struct DemandState {
    Demand demand;
    JobSpec like;  // the parts of a job from which its shapes are made
    std::string key;
    uint32_t references = 0;
    // Failures of this pass, so that the next job with the same needs is not tried again.
    uint64_t pass = 0;
    int failed_level = -1;
    bool no_preemption = false;
    bool no_backfill = false;
    std::vector<TeamId> no_reclaim;  // teams that may not, or could not, reclaim their guarantee
  };
  // A pending job in the form used for ordering: dense, in order of ids.
  struct Pending {
    JobId id;
    JobIndex job;
    uint32_t demand;
    TeamId team;
    uint32_t stamp;      // valid while equal to stamps_[job]
    bool turns;          // Core::TakesTurns
    Log base;            // slowly changing part of the density: class / (T * G^beta)
    int64_t inverse;     // growth per waiting millisecond, 1/2^32
    int64_t since_ms;    // waiting since
    int64_t starves_ms;  // starves after waiting this long
  };
  struct Ordered {
    uint32_t key;  // ascending: densest first
    uint32_t index;
    uint32_t demand;
  };

  // --- explain.cc ---
  std::optional<Blocker> BlockedByBlocks(const Demand& demand, const Demand::Part& part,
                                         const Demand::Alternative& alternative, ShapeId shape) const;

  // --- whatif.cc ---
  static constexpr size_t kDecisionsKept = 8;
  Worth WorthOf(const Job& job) const;
  void Note(JobIndex j, Decision::Kind kind, JobId other, const Terms& terms);
  bool WouldStart(const Job& like, const JobSpec& spec);
  void TrySmaller(const Job& job, std::vector<Counterfactual>* out);
  void TryElsewhere(const Job& job, std::vector<Counterfactual>* out);
  void TryHigherClass(JobIndex j, std::vector<Counterfactual>* out);
  std::vector<std::pair<Micros, JobIndex>> EndsInOrder() const;
  // The place of a job with these needs, if these running jobs were gone.
  std::optional<Placement> PlaceWithout(const Demand& demand, std::span<const std::pair<Micros, JobIndex>> gone);
  bool FitsWithout(JobIndex j, std::span<const std::pair<Micros, JobIndex>> gone) {
    return PlaceWithout(demands_[jobs_[j].demand].demand, gone).has_value();
  }
  // `before`: the job that is next in the queue after this one; kNoJob: this one is the last. Fills in the place.
  std::optional<Forecast> ForecastOf(const Demand& demand, JobIndex before, Placement* place);

  // --- engine.cc ---
  void On(const NodeUp& e);
  void On(const NodeLost& e);
  void On(const NodeDrained& e);
  void On(const TeamSet& e);
  void On(const JobSubmitted& e);
  void On(const JobStarted& e);
  void On(const JobSaved& e);
  void On(const JobStopped& e);
  void On(const JobEnded& e);
  void On(const Tick&) {}
  void On(const JobResized& e);
  void On(const PodsGone& e);
  void On(const MaintenanceSet& e);
  void On(const MaintenanceOver& e);

  JobIndex IndexOf(JobId id) const;
  uint32_t Intern(const JobSpec& spec);
  void DropDemand(uint32_t demand);
  void MakePending(JobIndex j);
  void RemovePending(JobIndex j);
  void Wake();
  bool MayBegin(const Job& job) const;
  void Doom(JobId dependency);
  void Occupy(JobIndex j);
  void Vacate(JobIndex j);
  void Forget(JobIndex j);
  void Leave(JobIndex j);
  void Unclaim(JobIndex j);
  void StayAway(JobIndex j);
  void NodeGone(NodeId node);
  void NobodyStartsOn(NodeId node);
  std::vector<Teams::Charge> ChargesOf(const Placement& placement);
  void Estimate(JobIndex j);
  Micros ServedNow(const Job& job) const;
  void VictimGone(JobIndex beneficiary);

  // --- inference.cc ---
  void FillShelf();
  void Fast();
  bool TryShelf(JobIndex j, const Demand& demand);
  bool LeavesHeadroom(const Job& job, int64_t milli) const;
  void NoteReturn(Job* job);
  void GiveBack();

  // --- maintenance.cc ---
  static Micros RunsOf(const JobSpec& spec);
  bool OutstaysWindow(const Job& job) const;
  ShapeId ShapeOf(const JobSpec& spec, const Request& request, const std::string& gpu_type);
  void HeedWindows();
  void Reopen();
  // Applies the maintenance windows to their nodes as of now.
  void LimitNodes();
  void ServeMaintenance();
  Micros NextMaintenance() const;
  Micros TellBefore(JobIndex j, Micros begins) const;
  void TellToLeave(JobIndex j, StopReason reason);

  // --- elastic.cc ---
  struct Shed {  // one block of an elastic gang
    JobIndex job = kNoJob;
    std::vector<size_t> rooms;  // ascending, in its placement
  };
  const Demand::Part* ElasticPart(const Job& job) const;
  int32_t PodsOf(const Job& job, int32_t role) const;
  int64_t PaceOf(const Job& job) const;
  Micros ResizeTime(const Job& job) const;
  void GrowElastic();
  bool GrowOne(JobIndex j);
  void TellGrown(JobIndex j, size_t from);
  void SetSize(JobIndex j, Placement placement);
  bool TryShrink(JobIndex j, DemandState& state);
  std::vector<Shed> SurplusFor(const Job& beneficiary, Level level, Domain domain) const;
  std::optional<Placement> PlaceByShrinking(JobIndex j, uint32_t alternative, Level level, Domain domain,
                                            std::vector<Shed>* sheds);
  void Shrink(JobIndex v, const std::vector<size_t>& rooms, JobIndex beneficiary, const Terms& terms);
  std::vector<PodPlace> PodsAt(const Placement& placement, size_t from) const;

  // --- pass.cc ---
  void Pass();
  void Order();
  bool TryPlace(JobIndex j, DemandState& demand);
  uint64_t AlternativesAllowed(const Job& job, const Demand& demand);
  Micros PatienceOf(const Job& job, const Demand& demand) const;
  Level WishOf(const Job& job, const Demand& demand) const;
  void Start(JobIndex j, Placement placement);
  void Begin(JobIndex j);
  void EmitPlace(JobIndex j);
  Log Growth(const Job& job) const;
  static Log GrowthOf(int64_t wait_ms, int64_t inverse);
  int64_t InverseOf(const Job& job) const;
  Log Density(const Job& job) const;
  Log Base(const Job& job) const;
  Log WaitCost(const Job& job) const;
  Log WaitCost(const Job& job, Log growth) const;
  Micros StarvationWait(const Job& job) const;

  // --- turns.cc ---
  // Above every density: for starving jobs, oldest first. Above that: for those whose turn it is, most overdue first.
  static constexpr Log kStarving = 1 << 29, kTurns = kStarving + (kStarving >> 1);
  static Log OverdueBy(int64_t waited, int64_t bound);
  bool TakesTurns(const Job& job) const;
  Micros TurnWait(const Job& job) const;
  bool MayTakeTurn(const Job& job) const;
  int64_t TurnCost(const Job& job, Micros turn) const;
  void BeginTurn(Job* job);
  void EndTurn(Job* job);
  void ServeTurns();
  Class ClassOf(const Job& job) const;

  // --- preempt.cc ---
  struct Victim {
    JobIndex job = kNoJob;
    JobId id = 0;  // needed because indexes are reused
    Log density = 0;
    int64_t omega = 0;  // its cost of waiting, thousandths per second
    StopMode mode = StopMode::kKill;
    Micros lost = 0;       // run time to repeat, plus its restore
    Micros latency = 0;    // until it is gone
    bool settled = false;  // past its quantum
  };
  enum class Means : uint8_t {
    kMove,     // moves jobs that fit elsewhere
    kEvict,    // evicts jobs of lower density
    kReclaim,  // takes room back from borrowers
  };
  struct Plan {
    std::vector<JobIndex> victims;
    std::map<JobIndex, Placement> moves;            // new places of the victims that move, already taken
    std::map<JobIndex, std::vector<size_t>> sheds;  // rooms that elastic gangs give up
    std::vector<Room> leftovers;                    // already taken
    std::vector<NodeId> nodes;
    Micros delay = 0;  // of victims that do not move, if all the room they leave is used
    int64_t price = INT64_MAX;
    Micros latency = 0;
    int64_t lost = 0;  // GPU-seconds
    StopReason reason = StopReason::kWorth;
  };
  void PrepareVictims();
  void PrepareNewVictims();
  Terms TermsFor(JobIndex j, const Plan& plan, Micros drained) const;
  Victim PriceOf(JobIndex v) const;
  bool Eligible(const Job& beneficiary, Log density, bool reclaim, const Victim& v) const;
  bool Movable(const Job& beneficiary, const Victim& v) const;
  int64_t PriceFor(Micros service, Micros delay, const Victim& v) const;
  std::optional<int64_t> Select(JobIndex j, ShapeId shape, int32_t need, Level level, Domain domain, Means means,
                                Micros delay, Plan* plan);
  bool SelectBlocks(JobIndex j, const Demand::Part& part, ShapeId shape, Level level, Domain domain, Means means,
                    Micros delay, Plan* plan);
  std::optional<Plan> PlanIn(JobIndex j, uint32_t alternative, Level level, Domain domain, Means means, Micros delay);
  std::optional<Placement> Prune(JobIndex j, Plan* plan);
  void KeepLeftovers(const Placement& placement, const std::vector<const Room*>& freed, Plan* plan);
  void Resettle(Plan* plan);
  struct Chosen {
    Plan plan;
    Placement placement;
    Terms terms;
  };
  std::optional<Chosen> ChoosePreemption(JobIndex j, const DemandState& demand);
  bool MayReclaim(TeamId team, const DemandState& demand) const;
  bool TryPreempt(JobIndex j, DemandState& demand);
  bool TryPreemptBackfill(JobIndex j);
  void Claim(JobIndex j, Plan& plan, Placement placement, const Terms& terms);
  Micros WaitWithout(const Demand& demand) const;
  void Refill();

  // --- holds.cc ---
  void ServeHolds();
  struct Opening {
    Micros in = 0;  // from now
    std::vector<NodeId> nodes;
  };
  std::optional<Opening> SoonestIn(ShapeId shape, int32_t pods, Level level, Domain domain);
  std::optional<Opening> SoonestBlocks(const Demand::Part& part, ShapeId shape, Level level, Domain domain);
  bool MakeHold(JobIndex j);
  void Admit(JobIndex j);
  static Micros RunOf(const Job& job);
  void ReviewPromises();
  bool KeepsPromise(JobIndex j, Admission* now);
  bool MayUseHold(const Job& job, const Job& holder) const;
  void DropHold(JobIndex j);
  bool TryBackfill(JobIndex j, DemandState& demand);

  Policy policy_;
  Cluster cluster_;
  Fragmentation fragmentation_{cluster_};
  Placer placer_{cluster_, fragmentation_};
  History history_{policy_};
  Teams teams_{policy_};
  Windows windows_;
  bool heeds_windows_ = false;  // shapes include how long their pods stay
  Micros maintained_ = 0, maintenance_due_ = 0;
  Headroom headroom_{policy_};
  int64_t headroom_target_ = 0;  // as of the last pass
  bool inference_seen_ = false;
  struct Return {
    std::vector<JobId> to;
    std::vector<NodeId> nodes;
  };
  std::vector<Return> returns_;

  Micros now_ = 0;
  std::deque<Job> jobs_;  // stays in place while it grows
  std::vector<JobIndex> free_jobs_;
  std::unordered_map<JobId, JobIndex> by_id_;
  std::vector<DemandState> demands_;
  std::vector<uint32_t> free_demands_;
  std::map<std::string, uint32_t> demand_by_key_;
  std::vector<JobIndex> not_yet_;
  std::vector<Pending> pending_;  // includes stale entries, which Order drops
  std::vector<uint32_t> stamps_;  // by job; 0: not pending
  uint32_t next_stamp_ = 0;
  bool pending_sorted_ = true;
  size_t waiting_ = 0;             // valid entries of pending_
  std::vector<JobIndex> fresh_;    // became pending in the last step
  std::vector<JobIndex> running_;  // running and not stopping
  bool hungry_ = false;            // some elastic gang has less than it could use
  std::vector<JobIndex> elastic_;  // the jobs of running_ that may change their size
  std::vector<JobIndex> holders_;
  std::vector<JobId> promised_;                 // in order of admission; may include ended jobs
  std::vector<std::vector<JobIndex>> on_node_;  // running jobs by node, each once

  std::vector<Ordered> order_, scratch_;
  uint64_t pass_ = 0;
  bool dirty_ = false;
  Micros last_pass_ = -kHour;
  Micros last_estimates_ = -kHour;
  size_t next_estimate_ = 0;  // index in pending_

  // Computed when a job wants to preempt and the values are older than Policy::price_interval.
  Micros victims_at_ = -kHour;
  std::vector<JobIndex> unpriced_;                    // started since then
  std::vector<Victim> victims_;                       // by job index
  std::vector<Log> node_floor_;                       // by node: least density among the jobs that could be evicted
  std::array<int64_t, kMaxGpus + 1> release_rate_{};  // per 10^9 seconds, slots with this many GPUs
  // By number of GPUs: the nodes where they cost least to get.
  std::array<std::vector<std::pair<int64_t, NodeId>>, kMaxGpus + 1> shelf_;
  int64_t free_milli_ = 0;  // at the beginning of the pass, less what has started since
  int backfill_tries_ = 0;
  int hold_tries_ = 0;
  int64_t lost_tokens_ = 0;  // thousandths of GPU-seconds
  int64_t turn_tokens_ = 0;  // the same
  Log most_overdue_ = 0;     // of the gangs that waited for a turn in the last pass; 0: there was none
  Micros refilled_ = 0;

  std::vector<Action> actions_;
};

}  // namespace vrun::sched::core
