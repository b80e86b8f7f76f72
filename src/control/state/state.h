// SPDX-License-Identifier: Apache-2.0
// The controller's state: unfinished jobs, nodes and the scheduler. It is rebuilt from the store at every start and
// after every failed transaction. Transitions that several operations share are here; ops/ and duties/ decide when they
// happen.
//
// State thread only. Every change is written to the store in the same call. Messages and news collect in the outbox and
// are sent only after the store has committed. Events are fed to the scheduler, and Decide runs it once at the end of
// the transaction, which also writes the scheduler's journal.
//
// A job runs in attempts, an attempt has pods, and each pod is on one node. A gang, which has several pods, starts only
// when all of them are ready:
//
// 1. STARTING: each node prepares its pod and reports that it is ready.
// 2. All are ready: the job is RUNNING, and each node is told to go.
// 3. The first failure ends the other pods (JobRow::ending). When all commands have ended, the job is COMPLETING or
//    waits again, and its room is free. When all pods are over, the job has ended.
//
// Steps of a preempted attempt:
//
// 1. It is told to leave (JobRow::stopping).
// 2. Its commands have ended and its room is free. The job is PENDING while its writes travel home (JobRow::leaving).
// 3. Home has the writes. Now the next attempt, which the scheduler may have placed meanwhile, is ordered.
//
// An array is one job that never runs itself. Its elements become jobs as they enter the window: kArrayWindow of them
// wait in the scheduler's queue, all others cost nothing. They become jobs in the transaction that makes room for them,
// so each does so exactly once, whenever the controller is stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "control/access/access.h"
#include "control/money/amounts.h"
#include "control/money/usage_sums.h"
#include "control/needs/default_memory.h"
#include "control/notify/sender.h"
#include "control/state/explain.h"
#include "control/state/gang.h"
#include "control/state/scheduler.h"
#include "control/state/scheduler_config.h"
#include "control/store/store.h"
#include "proto/control.pb.h"
#include "proto/journal.pb.h"

namespace vrun::control {

// True from the placement until all commands have ended. Their writes may reach home long after that.
inline bool HoldsResources(const JobRow& job) {
  return job.state != v1::PENDING && !IsEnd(job.state) && !CommandsEnded(job);
}

struct Node {
  NodeRow row;
  bool connected = false;  // its stream is open and registered
  int64_t last_heard = 0;  // monotonic
  bool suspect = false;    // it could not start a pod of a gang, and nothing has run on it since
  // Reports about its GPUs: how many since when (monotonic), and what waits until it may report again.
  int64_t reports_since = 0;
  int reports = 0;
  std::optional<v1::GpuReport> waiting_report;
};
v1::NodeHealth HealthOf(const NodeRow& node);
// Whether it gets no more jobs, by an administrator's word or its own.
bool Drains(const NodeRow& node);

// What to send once the store has committed.
struct Outbox {
  std::vector<std::pair<std::string, v1::ControllerMessage>> to_nodes;  // in order; dropped when the node is
                                                                        // disconnected
  std::set<uint64_t> jobs;                                              // changed jobs, for their watchers
  std::set<std::pair<uint64_t, uint32_t>> pods;                         // pods that changed though their job did not
  std::set<std::string> pools;                                          // pools whose queue has moved
  std::map<uint64_t, std::vector<v1::ArrayElement>> elements;           // of arrays: those that are jobs now
  std::vector<notify::StoredMessage> messages;                          // to be delivered (notify/sender.h)
};

// At most this many waiting elements of an array are jobs.
constexpr uint32_t kArrayWindow = 64;
// The request ids of elements begin with this, and no others do.
constexpr std::string_view kElementRequests = "array element ";

// An array that has not ended.
struct Array {
  struct Element {
    enum class Phase : uint8_t { kQueued, kIdle, kRuns, kEnds } phase = Phase::kQueued;  // kIdle: held or parked
    bool started = false;
  };
  ArrayRow row;
  Positions ready;                       // may become jobs: those of row.left that are neither held nor gated
  std::map<uint64_t, Element> elements;  // unfinished ones that are jobs
  std::set<uint64_t> parked;             // of these
  uint32_t queued = 0;                   // number of these by phase
  uint32_t idle = 0;
  uint32_t running = 0;
  uint32_t started = 0;       // of these
  bool sets_changed = false;  // in row, not stored yet
  // As many run or are about to as may run at a time.
  bool full() const { return row.array.most_running() != 0 && queued + running >= row.array.most_running(); }
};

// How many elements wait, run and have ended.
v1::ArrayInfo CountsOf(const Array& array);

class ContentTier;

struct Settings {
  int64_t heartbeat_micros = 2'000'000;
  int64_t lease_micros = 15'000'000;
  std::vector<std::string> pools;
  ContentTier* tier = nullptr;  // the pool's S3 store; not owned; null: none
  SchedulerConfig scheduler;
  size_t most_journal_rows = 50'000;   // then the scheduler's journal starts anew; reading it takes seconds
  int64_t start_micros = 120'000'000;  // all pods of a gang are ready this long after the first one
  // Whether the home of this name has its certificate by a token. Null: none has.
  std::function<bool(const std::string&)> joined = nullptr;
  std::string boot_id = {};  // of this host: another one after each of its starts
};

class State {
 public:
  State(Store* store, const Clock* clock, Settings settings)
      : store_(store), clock_(clock), settings_(std::move(settings)), scheduler_(clock, settings_.scheduler.weights) {}

  // Forgets everything but the connections, and reads the store.
  Status Load();

  Store& store() { return *store_; }
  const Clock& clock() const { return *clock_; }
  // The date of the accounting, which follows the wall clock only when it has been set for good.
  int64_t AccountingNow() const;
  const Settings& settings() const { return settings_; }
  const sched::core::State& scheduler() const { return scheduler_.state(); }
  std::map<std::string, Node>& nodes() { return nodes_; }
  const std::map<uint64_t, JobRow>& jobs() const { return jobs_; }  // unfinished jobs
  Outbox& outbox() { return outbox_; }

  // Whether the settings name the pool or a node of it has ever joined.
  bool KnowsPool(const std::string& pool) const;
  std::vector<std::string> Pools() const;

  // --- the scheduler ---
  // At the end of a transaction: runs the scheduler on all events since the last call and carries out its decisions.
  Status Decide();
  // Microseconds until Decide must be called even if nothing happens; nullopt: never.
  std::optional<int64_t> NextWake() const;
  // Replaces the teams, the administrators, and what is said about nodes, from now on. The weights stay as they were at
  // the start.
  void Configure(SchedulerConfig config);
  // Position in its pool's queue, 1 = next; 0: the job does not wait.
  uint32_t QueuePosition(uint64_t id);
  v1::WhyAnswer Explain(const JobRow& job);
  // When and where it would start, and what it would cost.
  Result<v1::WhyAnswer> Forecast(const JobRow& job);

  // --- jobs ---
  // Stores the job and queues it. Returns the id.
  Result<uint64_t> Add(JobRow job);
  // Ends a PENDING job. Otherwise tells the nodes, now and at each of their registrations. The job must be unfinished.
  // Of an array: all elements.
  Status Cancel(uint64_t id, int32_t signal);
  // The request as the job was submitted with; for an element with what it runs.
  Result<v1::SubmitRequest> RequestOf(const JobRow& job);
  Status End(uint64_t id, v1::JobState state, const std::string& reason);
  // Handles a node's report about a pod. Stale and repeated reports are acknowledged without effect.
  Status Apply(const std::string& node, const v1::AttemptReport& report);
  // A process that a pod wants to start in another pod of its job, or the answer: passed on to the other pod's node.
  void PassOn(const std::string& node, const v1::ExecInPod& exec);

  // --- nodes ---
  Status PutNode(const NodeRow& row);  // stores it and gives it to the scheduler
  Status LoseNode(const std::string& name, const std::string& reason);
  void Disconnected(const std::string& name);  // not lost yet, but gets no placements
  // Pods of present attempts that are on the node and not over: job and index.
  std::vector<std::pair<uint64_t, uint32_t>> PodsOn(const std::string& node) const;
  // Pods of earlier attempts that left writes there.
  std::vector<std::pair<uint64_t, uint32_t>> PodsLeaving(const std::string& node) const;
  // For a pod that has certainly ended, but not by itself. Its attempt ends. With kPodLost the job waits again if it
  // may.
  Status PodGone(uint64_t id, uint32_t pod, Ending why, const std::string& reason);
  // For a pod that its node does not know, although it was not restarted: it never got the order, or has lost its
  // journal.
  Status PodUnknown(uint64_t id, uint32_t pod);
  // A node is there again: gangs that waited only for it begin.
  Status Reconnected(const std::string& node);
  // Repeats the orders about a pod to its node, after the node was away.
  Status SendOrders(uint64_t id, uint32_t pod);
  // The writes of a pod of an earlier attempt have reached home, or were lost with their node.
  Status Left(uint64_t id, uint32_t pod);

  // --- arrays (arrays/state_arrays.cc) ---
  // Stores the array. kInvalid: no element of it could ever start. Returns the id.
  Result<uint64_t> AddArray(JobRow job, const v1::Array& array);
  // Null: it has ended, or is no array.
  const Array* FindArray(uint64_t id) const;
  // The positions of the elements that the ranges name; without ranges all. kInvalid: ranges that CheckRanges refuses.
  // kNotFound: the array has none of these elements.
  Result<Positions> SelectElements(uint64_t id, const ElementRanges& ranges) const;
  Status CancelElements(uint64_t id, const Positions& which, int32_t signal);
  // kInvalid: none of them waits, or is held.
  Status HoldElements(uint64_t id, const Positions& which, bool hold);
  // kInvalid: none of them was stopped; says why not.
  Status RequeueElements(uint64_t id, const Positions& which);
  // Unfinished elements that are jobs.
  std::vector<v1::ArrayElement> ElementsOf(uint64_t id) const;
  // The row of the array itself, if the element is not a job. kNotFound: it has no such element.
  Result<JobRow> FindElement(uint64_t id, uint32_t index);
  v1::JobInfo InfoOfElement(const JobRow& array, uint32_t index, const std::string& viewer);
  v1::WhyAnswer ExplainElement(const JobRow& array, uint32_t index);
  // Whether all elements have started or ended.
  bool AllStarted(uint64_t array) const;

  // --- what people and programs ask for (state_admin.cc) ---
  // A waiting job does not start until it is released. kInvalid: it does not wait.
  Status SetHold(uint64_t id, bool hold);
  // Stops its attempt, after which it waits again. kInvalid: it does not run, or cannot be started again.
  Status StopToRequeue(uint64_t id);
  // The program of the attempt said that its state is safe.
  Status Saved(const std::string& node, const v1::JobWord& word);
  // Nothing starts on the node until it is resumed.
  Status Drain(const std::string& node, bool drain, const std::string& reason);
  // How large the nodes of the pool are that are not lost, each size once. Valid until a node registers or is lost.
  const std::vector<NodeSize>& SizesOf(const std::string& pool);
  // What the node says about itself, completed by the configuration.
  v1::NodeFacts FactsOf(const NodeRow& node) const;
  // Replaces a window of this name.
  Status SetMaintenance(const MaintenanceRow& window);
  Status EndMaintenance(const std::string& name);
  Status ForgetPastMaintenance();
  const std::map<std::string, MaintenanceRow>& maintenance() const { return maintenance_; }

  // --- GPUs (gpus/state_gpus.cc) ---
  // What a connected node says of its GPUs. Too many reports of one node wait.
  Status Heed(const std::string& node, const v1::GpuReport& report);
  // Reports that had to wait. Call every few seconds.
  Status HeedWaiting();
  // What pods of the node use of their GPUs.
  Status Use(const std::string& node, const v1::GpuUsages& usages);
  // What all attempts of a job used.
  Status SumGpuUse(uint64_t id, v1::JobInfo* info);
  // Decides what follows from row->facts and the node's wish to drain. `fresh`: it joins for the first time.
  void JudgeHealth(NodeRow* row, const std::string& drain, bool fresh);

  // --- accounting (money/state_money.cc) ---
  // What the viewer may see of who has used what. kInvalid: a request that makes no sense.
  Status SumUsage(const std::string& viewer, const v1::UsageRequest& request, v1::UsageReport* report);
  // What all attempts of a job have cost.
  Status SumCost(uint64_t id, v1::JobInfo* info);
  // The budgets of the teams that the viewer sees.
  void AddBudgets(const std::string& viewer, google::protobuf::RepeatedPtrField<v1::Budget>* to) const;
  // For people; "": there is enough left.
  std::string BudgetWarning(const std::string& team) const;

  // --- who is told (notify/state_notify.cc) ---
  // Who will be told about a job, as it asks. kInvalid, kDenied: it may not. `*warning`: for people; "": none.
  Result<v1::JobNotify> NotifyOf(const std::string& user, const v1::Notify& asked, std::string* warning) const;
  // The message of this row needs no more tries.
  Status Delivered(uint64_t row);
  size_t messages() const { return messages_; }                  // that wait
  size_t messages_refused() const { return messages_refused_; }  // because too many wait

  // --- who asks (people/state_people.cc); users are certificate names ---
  Role RoleOf(const std::string& user) const;
  Whose WhoseIs(const std::string& user, const std::string& owner, const std::string& team) const;
  // Whether names, reasons, nodes and usage of the owner's jobs in the team are shown. viewer "": a service.
  bool Shows(const std::string& viewer, const std::string& owner, const std::string& team) const;
  bool Shows(const std::string& viewer, const JobRow& job) const {
    return Shows(viewer, job.user, job.scheduling.team());
  }
  // Whether what a team has, uses and waits for is told.
  bool ShowsTeam(const std::string& viewer, const std::string& team) const;
  bool ShowsCommand(const std::string& viewer, const JobRow& job) const;
  // As access.h, for this job.
  Status MayTouch(std::string_view call, const std::string& user, const JobRow& job) const;
  v1::WhoAmIReply Describe(const std::string& user) const;
  // kExhausted: this user has too many jobs, or with `more_bytes` too large ones.
  Status CheckBounds(const std::string& user, uint64_t more_bytes) const;

  // --- what others may see ---
  // Whether an attempt is on a node that knows of it, so that home may connect to it.
  bool IsPlaced(const JobRow& job) const;
  // Placed, but its node has not been told, because writes that the job may read are still on their way home. They
  // belong to an earlier attempt or to a job that this one depends on.
  bool StartHeldBack(const JobRow& job) const;
  // The answer about its hard deadline; "" if there was none.
  std::string DeadlineOf(uint64_t id) const;
  // nullopt: there is no such pod, or it is home while others of its attempt are not.
  std::optional<v1::Placement> PlacementOf(const JobRow& job, uint32_t pod) const;
  // Also reads ended jobs from the store. kNotFound.
  Result<JobRow> Find(uint64_t id);
  // The placement and the exit record are those of the pod.
  Result<v1::JobEvent> EventOf(uint64_t id, const std::string& viewer, uint32_t pod = 0);
  v1::JobInfo InfoOf(const JobRow& job, const std::string& viewer, size_t max_argv_bytes);
  Status AddAttempts(uint64_t id, google::protobuf::RepeatedPtrField<v1::AttemptInfo>* to);

 private:
  // Takes out what the viewer may not see.
  void Show(const std::string& viewer, const JobRow& job, v1::JobInfo* info) const;
  void Count(const JobRow& job, bool there);  // what its user takes

  // Restores the scheduler from its journal, or with `anew` from the jobs.
  Status LoadScheduler(bool anew);
  void FeedTeams(const std::vector<TeamConfig>& gone);
  sched::core::NodeSpec SpecOfNode(const NodeRow& node) const;
  // Now, or for kAfterItsSave when its own next save should be over. Monotonic.
  int64_t TellAt(const JobRow& job, sched::core::StopMode mode) const;
  // Tells attempts to leave whose time has come.
  void TellStops();
  // Uses one try of the rule for which the node has ended the attempt, as its reason says. False: it is no such end.
  bool TakeRetry(const std::string& reason, JobRow* job);
  // Uses one try of the first rule for ends of this kind, if there is one.
  void TakeRetryFor(const std::string& cause, JobRow* job);
  // Tells the scheduler the begin time of a job that waits again.
  void WaitForBegin(const JobRow& job);
  // The run time of its attempt that must be repeated when it ends now.
  sched::core::Micros LostBy(const JobRow& job) const;
  Status TeachHistory();
  bool Agrees() const;
  Status Carry(const sched::core::Place& place);
  Status Carry(const sched::core::Preempt& preempt);
  Status Carry(const sched::core::Hold&) { return {}; }
  Status Carry(const sched::core::Resize& resize);
  Status AddPod(JobRow& job, const sched::core::PodPlace& at, Membership membership);
  Status Carry(const sched::core::Admission& admission);
  Status Carry(const sched::core::Doomed& doomed);
  // A job that this one depends on whose command has ended but whose writes are not home yet; 0: none.
  uint64_t AwaitedBy(const JobRow& job) const;
  // Releases the jobs held back for `ended`, which is gone.
  Status Release(const JobRow& ended);
  Status Know(JobRow job);
  std::string Waiting(const JobRow& job);  // one line that says why it waits
  Status Save(const JobRow& job);
  Status SavePod(const JobRow& job, const PodRow& pod);
  Status SaveAttempt(const JobRow& job, v1::JobState state, int64_t placed_us, int64_t ended_us,
                     const std::string& reason = "");

  // --- accounting (money/state_money.cc) ---
  Status LoadAccounting();
  // Call in each transaction, and every few seconds.
  Status Account();
  Status SaveAccounting();
  int64_t OnAccountingClock(int64_t wall) const;
  Status FollowClock();
  void BeginInterval(PodRow* pod);
  // `end`, `lost`: of the pod, on the clock of the accounting; microseconds. Stores the pod. Nothing if it has no room.
  Status CloseInterval(JobRow& job, PodRow& pod, IntervalEnd ended, int64_t end, int64_t lost);
  Status CloseIntervals(JobRow& job, IntervalEnd ended, int64_t lost);  // of all pods
  // The attempt has given up its room: with this end, or to wait again with `lost` run time to repeat.
  Status AccountEnd(JobRow& job, v1::JobState state);
  Status AccountRequeue(JobRow& job, v1::JobState state, int64_t lost);
  // A pod without which the job goes on.
  Status AccountLeft(JobRow& job, PodRow& pod);
  Holder HolderOf(const JobRow& job, const PodRow& pod) const;
  IntervalRow IntervalOf(const JobRow& job, const PodRow& pod, int64_t end) const;
  std::optional<int64_t> EndOnNode(const PodRow& pod) const;
  template <typename Each>
  void EachHeld(Each each) const;  // of pods that have room now: until now
  Seen SeenBy(const std::string& viewer, const Holder& holder) const;
  // `tell`: jobs that may not start any more, or may start again, are fed to the scheduler.
  Status JudgeBudgets(bool tell);
  const v1::Budget* StoppedBy(const std::string& team) const;  // null: its jobs may start

  template <typename Each>
  Status EachDay(int64_t from, int64_t to, Each each) const;  // of what is left of removed jobs

  // --- who is told (notify/state_notify.cc) ---
  Status LoadMessages();
  void FollowTold(const JobRow& job);  // of an unfinished job: what it has come to needs not to be told any more
  // Follows the job's state. Call after each change of it.
  Status TellTransition(const JobRow& job);
  // What the job has come to. `events`: those of which it is one, the one that it is called first.
  Status TellJob(const JobRow& job, const std::vector<std::string>& events, const std::string& said);
  Status TellLimits();   // parts of time limits that are over
  Status TellBudgets();  // the first time that they are near their end, or used up, in a month
  // Of the transaction; told together at its end.
  void NoteNode(const char* event, const std::string& node, const std::string& text);
  Status TellNodes();
  // To all webhooks of the cluster that want it. `team`: "" for nodes.
  Status TellHooks(const std::vector<std::string>& events, const std::string& team, const std::string& body);
  Status TellPeople(const std::vector<std::string>& addresses, const std::string& subject, const std::string& text);
  // Stores the message, unless too many wait.
  Status Send(v1::Notification message);

  Status HeedNow(const std::string& node, const v1::GpuReport& report);
  Status Fault(const std::string& node, const v1::GpuReport::Fault& fault);

  // --- arrays (arrays/state_arrays.cc) ---
  Status LoadArrays();
  // Follows the element's state. Call after each change of it.
  Status NoteElement(const JobRow& job);
  Status ElementEnded(const JobRow& job);
  Status CancelArray(JobRow& job, int32_t signal);
  // Makes elements jobs where there is room for them.
  Status FillWindows();
  // Elements that are jobs.
  std::vector<uint64_t> JobsOf(uint64_t array, const Positions& which) const;
  Status MakeJob(Array& array, const JobRow& whole, uint64_t position);
  // These elements will never be jobs.
  Status DropElements(uint64_t array, const Positions& which);
  Status EndIfOver(uint64_t array);
  // Stores what has changed of the arrays.
  Status SaveArrays();
  void Touch(uint64_t array) { touched_.insert(array); }
  // Excludes and gates the elements that depend on those of other arrays.
  Status GateElements(const JobRow& job, Array* array);
  // What the end of these elements means for those of other arrays.
  Status TellCorresponding(uint64_t array, const Positions& which, bool completed);
  // nullopt: the element has not ended.
  Result<std::optional<bool>> Completed(uint64_t array, uint32_t index);
  // Of an array, also of one that has ended. `whole`: with the values of its sweeps.
  Result<v1::ArrayInfo> InfoOfArray(const JobRow& job, bool whole);
  // Fills in what an array or an element has more than other jobs.
  void AddElements(const JobRow& job, bool whole, v1::JobInfo* info);
  std::string WhyArrayWaits(const JobRow& job);
  std::string WhyElementWaits(const JobRow& job, uint64_t position);
  v1::WhyAnswer ExplainArray(const JobRow& job);

  // --- jobs that the controller keeps from starting (arrays/state_dependencies.cc) ---
  enum class Depends : uint8_t { kEnd, kSuccess, kFailure, kStart, kCorresponding };
  struct Dependent {
    uint64_t job = 0;
    Depends how = Depends::kEnd;
  };
  // Whether the scheduler itself waits for it.
  static bool LeftToScheduler(const JobRow& job, const JobRow& other, Depends how);
  // Whether something other than the scheduler keeps it from starting, besides `hold`.
  bool Blocked(const JobRow& job) const;
  // One line about each thing that does: kind and text.
  std::vector<v1::WhyAnswer::Blocker> BlockersOf(const JobRow& job) const;
  sched::core::JobSpec SpecForScheduler(const JobRow& job) const;
  void Remember(const JobRow& job);
  // The scheduler sees the job's new begin time. The scheduler knows no change of a job.
  void FeedAgain(const JobRow& job);
  // `other` has started or ended, as far as the dependent waits for that.
  Status Fulfil(const Dependent& dependent, const JobRow& other);
  // It can never start.
  Status Doom(uint64_t id, const std::string& reason);
  // Ends what can no longer start, and whatever can no longer start because of that.
  Status CarryConsequences();
  // Nothing of this kind blocks it any more.
  Status Unblock(const JobRow& job);
  Status NoteStarts();
  // Lets the next job of this user and name start.
  Status PassTurn(const JobRow& ended);

  // --- attempts (state_attempts.cc) ---
  // The job, if this pod of its present attempt is on the node and not over.
  JobRow* JobOf(const std::string& node, uint64_t id, uint32_t attempt, uint32_t pod);
  Status Report(JobRow& job, PodRow& pod, const v1::AttemptReport& report);
  bool NodesAreThere(const JobRow& job) const;
  // What follows from a change of the pods. `held`: HoldsResources before it. `changed`: the job's own row has changed.
  Status Settle(JobRow& job, bool held, bool changed);
  // What follows for the others from the end of a pod's command. Returns whether the job's row has changed.
  bool NoteEnd(JobRow& job, const PodRow& pod, bool all_had_run);
  void EndGang(JobRow& job, Ending why, uint32_t pod, const std::string& failure);
  Status Bereave(JobRow& job, PodRow& pod, const PodRow& before, Ending why, const std::string& reason);
  Status LosePods(JobRow& job, const std::string& node, const std::string& reason);
  Status RunAgain(JobRow& job);
  sched::core::Micros LostWork(const JobRow& job, bool retried);
  Status BackToQueue(JobRow& job, sched::core::Micros lost, v1::JobState attempt_state, const std::string& reason);
  void AwaitStragglers(const JobRow& job);
  Status EndStragglers();
  // The room of a gang is not held for a pod that never gets ready. While no pod is ready, home may be off.
  void LimitStart(const JobRow& job);
  Status EndLateStarts();

  // --- elastic gangs (state_resize.cc) ---
  Status Grow(JobRow& job, const sched::core::Resize& resize);
  Status Shrink(JobRow& job, const sched::core::Resize& resize);
  Status AskToLeave(JobRow& job, PodRow& pod, const std::string& why);
  void TellResized(const JobRow& job, const std::vector<sched::core::PodPlace>& leaving);
  // For a pod whose command has ended: if it leaves, its room is free; if it joins, it does so no more.
  Status Departed(JobRow& job, PodRow& pod, const std::string& reason);
  Status DismissJoining(JobRow& job);
  // Tells pods to go that were added and are prepared.
  void LetJoin(const JobRow& job);
  void TellMembers(const JobRow& job);  // to all pods
  void SendMembers(const JobRow& job, const PodRow& pod);

  // --- orders (state_orders.cc) ---
  Status SendStart(const JobRow& job);  // to all pods
  Status SendStart(const JobRow& job, uint32_t first, uint32_t end);
  void SendGo(const JobRow& job, const PodRow& pod);
  void SendStop(const std::string& node, uint64_t job, uint32_t attempt, uint32_t pod, int32_t signal);
  void SendPreempt(const JobRow& job);  // to all pods
  void SendPreempt(const JobRow& job, const PodRow& pod);
  void SendGangEnd(const JobRow& job, const PodRow& pod);
  void SendResized(const JobRow& job, const PodRow& pod);
  v1::GangPod SeenByOthers(const JobRow& job, const PodRow& pod) const;

  void FeedNode(const Node& node);
  void Suspect(const std::string& node, bool suspect);

  Store* const store_;
  const Clock* const clock_;
  Settings settings_;
  Scheduler scheduler_;
  std::map<uint64_t, uint32_t> positions_;
  bool positions_known_ = false;
  std::vector<uint64_t> fresh_;  // added since the last Decide
  std::map<uint64_t, JobRow> jobs_;
  std::multimap<uint64_t, Dependent> dependents_;    // unfinished jobs, by the job that they depend on
  std::map<uint64_t, uint32_t> blocks_;              // of unfinished jobs: dependencies that block them
  std::map<std::string, std::set<uint64_t>> names_;  // unfinished jobs that are no elements, by user and name
  // What follows for others from the end of a job: one can never start (`reason`), or some elements of an array cannot.
  // They wait here, because a chain of ten thousand jobs would be too deep for recursion.
  struct Consequence {
    uint64_t job = 0;
    std::string reason;
    Positions never;
  };
  std::deque<Consequence> consequences_;
  std::vector<uint64_t> started_;     // may have just started, and others wait for that
  std::map<uint64_t, Array> arrays_;  // unfinished
  std::set<uint64_t> touched_;        // arrays in whose windows there may be room
  std::set<uint64_t> unsaved_;        // arrays whose rows have changed
  // The request of an array, the last one that was read.
  struct {
    uint64_t job = 0;  // 0: none
    v1::SubmitRequest request;
    v1::Array array;
  } request_;
  std::map<uint64_t, sched::core::Admission> admissions_;  // of unfinished jobs, since this process began
  std::set<uint64_t> broken_promises_;                     // those of admissions_ that were revoked
  std::map<uint64_t, int64_t> stragglers_;                 // gangs that will be ended, by the wall clock
  // Gangs of which some pod is ready: when the others are too late. Monotonic; an entry of an earlier attempt is stale.
  struct StartLimit {
    uint64_t epoch = 0;
    int64_t at = 0;
  };
  std::map<uint64_t, StartLimit> start_limits_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, std::vector<NodeSize>> sizes_;  // of nodes_, by pool; empty: must be made anew
  struct Taken {
    uint64_t jobs = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, Taken> taken_;  // by unfinished jobs, by person
  std::map<std::string, MaintenanceRow> maintenance_;
  AccountingClock accounting_;                 // at the start, or when the clock was set
  bool accounted_ = false;                     // since it was stored
  int64_t stepped_since_ = 0;                  // the wall clock has differed from it; monotonic; 0: it does not
  int64_t looked_at_ = 0;                      // the clock and the budgets; monotonic
  int64_t month_from_ = 0;                     // of month_; 0: it is not known
  std::map<std::string, Amounts> month_;       // what has ended of this month, by team, without the teams below it
  std::map<std::string, v1::Budget> budgets_;  // by team, as of looked_at_
  std::set<uint64_t> begun_;                   // unfinished jobs that have begun and were not stopped since
  std::set<uint64_t> timed_;                   // unfinished jobs that want to be told about their time limits
  v1::BudgetsTold budgets_told_;
  struct NodeNews {
    std::string event, node, text;
  };
  std::vector<NodeNews> node_news_;
  size_t messages_ = 0;
  size_t messages_refused_ = 0;
  // How attempts that have to leave are told so. Not stored: after a restart they get all of their grace.
  struct Stop {
    sched::core::StopMode mode = sched::core::StopMode::kSave;
    int64_t at = 0;  // when it is told; monotonic
    bool told = false;
  };
  std::map<uint64_t, Stop> stops_;
  uint64_t epoch_ = 0;
  Outbox outbox_;
};

Needs ToNeeds(const v1::Resources& r);
v1::Resources ToProto(const Needs& r);

}  // namespace vrun::control
