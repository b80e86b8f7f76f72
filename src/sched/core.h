// SPDX-License-Identifier: Apache-2.0
// The scheduler core: pure and deterministic, with no I/O, clock or threads. Its owner feeds events and executes
// actions. The same events at the same times give the same actions in the same order, in production and in a simulator.
//
// Life of a job: submitted, pending, (claiming: victims leave for it), running, (stopping: told to leave), then pending
// again or gone. Room is accounted from the action that gives it until the event that returns it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sched/model/model.h"
#include "sched/model/policy.h"

namespace vrun::sched::core {

// --- events ---

// A node is new, back or changed. Jobs on it stay accounted. Ignored when Validate refuses it.
struct NodeUp {
  NodeSpec node;
};
// Nothing is placed on the node until it is up again. Jobs on it stay accounted until an event ends them.
struct NodeLost {
  std::string name;
};
struct NodeDrained {
  std::string name;
};
// A team is new or changed. Lowered limits stop new work but end no running job.
struct TeamSet {
  TeamSpec team;
};
// Ignored when the job is known already or Validate refuses it.
struct JobSubmitted {
  JobSpec job;
};
// Recovery: an earlier decision gave the job (submitted before) this room. Accepted even if it exceeds the node.
struct JobStarted {
  JobId job = 0;
  std::vector<PodPlace> pods;
  Micros since = 0;
};
// The running job's state as of `at` is safe. `took` > 0 is learned as the duration of a save.
struct JobSaved {
  JobId job = 0;
  Micros at = 0;
  Micros took = 0;
};
// The job left its room without having ended (it obeyed a Preempt, or its node died) and is pending again. `lost` is
// the run time that must be repeated.
struct JobStopped {
  JobId job = 0;
  Micros lost = 0;
};
// The job is gone for good: it ended, failed permanently or was cancelled. `completed`: learn from its run time.
// `succeeded`: it completed successfully; only then may its afterok dependents start.
struct JobEnded {
  JobId job = 0;
  bool completed = true;
  bool succeeded = true;
};
// The pods that a Resize removed have left their room.
struct JobResized {
  JobId job = 0;
};
// These pods of a running elastic gang have left their room without a Resize, because they could not start: the gang
// goes on as it was before they were added. It does not grow again for a while.
struct PodsGone {
  JobId job = 0;
  std::vector<PodPlace> pods;
};
// Announced or changed; ignored when Validate refuses it. A window is over at its end, or earlier when the event says
// so.
struct MaintenanceSet {
  Maintenance window;
};
struct MaintenanceOver {
  std::string name;
};
// Only time has passed.
struct Tick {};
using Event = std::variant<NodeUp, NodeLost, NodeDrained, TeamSet, JobSubmitted, JobStarted, JobSaved, JobStopped,
                           JobEnded, Tick, MaintenanceSet, MaintenanceOver, JobResized, PodsGone>;

// --- actions ---

// The terms of a decision in the unit of Policy's formulas: seconds of waiting of a job of weight 1 with one GPU.
// Logged unchanged, so that explanations and tuning use the same numbers.
struct Terms {
  int64_t gain = 0;         // value of the beneficiary's shorter wait, thousandths
  int64_t price = 0;        // cost to the victims, thousandths
  Micros wait_without = 0;  // the beneficiary's expected wait without preemption
  Micros remaining = 0;     // the victim's expected remaining run time
  int64_t lost = 0;         // GPU-seconds
};

// A job's worth at one moment: the terms of its value density, log2 in 1/65536. Their sum orders the queue.
struct Worth {
  int32_t klass = 0;
  int32_t remaining = 0;  // -(expected time to completion and size)
  int32_t deadline = 0;
  int32_t fairness = 0;
  int32_t growth = 0;  // from waiting
  int32_t total() const { return klass + remaining + deadline + fairness + growth; }
};

// A decision about a job (explain.h, Why).
struct Decision {
  enum class Kind : uint8_t {
    kStarted,      // there was room
    kClaimed,      // others leave or shrink for it; `other` is the first
    kStartedLate,  // the jobs that had to leave have left
    kEvicted,      // for job `other`
    kMoved,        // to make room for job `other`
    kShrunk,       // for job `other`
    kGrown,
    kHeld,         // room is held for it as it becomes free
    kMaintenance,  // told to leave its node
  };
  Micros at = 0;
  Kind kind = Kind::kStarted;
  JobId other = 0;
  Worth worth;
  Terms terms;
};

// The whole gang starts at these places.
struct Place {
  JobId job = 0;
  std::vector<PodPlace> pods;
  std::string gpu_type;  // chosen from the alternatives; "" when there are none
};

enum class StopMode : uint8_t {
  kKill,          // at once: work since the last save is lost
  kSave,          // save, then stop
  kAfterItsSave,  // its own next save is near: stops after it
};
enum class StopReason : uint8_t {
  kWorth,        // the beneficiary's wait costs more than the preemption
  kGuarantee,    // the room belongs to the beneficiary's team; this job borrowed it
  kBackfill,     // it used room that is held for the beneficiary
  kMove,         // it makes room by moving: a Place follows when it has stopped
  kMaintenance,  // its node goes out of service; there is no beneficiary
  kTurn,         // the beneficiary is a large gang that has waited for too long
};
// The running job must leave. Answered by JobStopped or JobEnded. Its room goes to `beneficiary` (0: nobody).
struct Preempt {
  JobId job = 0;
  JobId beneficiary = 0;
  StopMode mode = StopMode::kKill;
  StopReason reason = StopReason::kWorth;
  Terms terms;
};

// The job gets these nodes as they become free, expected by `start`. For information only.
struct Hold {
  JobId job = 0;
  std::vector<std::string> nodes;
  Micros start = 0;
};

// An elastic gang gets these additional pods at once, or must give up these pods. The latter is answered by JobResized
// (or JobStopped, JobEnded); their room goes to `beneficiary`. New pods that cannot start are answered by PodsGone.
struct Resize {
  JobId job = 0;
  std::vector<PodPlace> pods;
  bool grow = false;
  JobId beneficiary = 0;
  Terms terms;
};

// The answer to a job with a hard deadline. It is given in the step that submits the job, or, if the job has
// dependencies or a begin time, in the step in which it may begin. Met: the job starts now or gets a hold, and ends in
// time by its limit or by what its own program needed nine times of ten. Not met: its deadline counts as soft; `end` is
// its expected end, kNever when nothing is known to make room. A second Admission, not met, revokes the first because
// the forecast failed. There is no third.
struct Admission {
  JobId job = 0;
  bool met = false;
  bool known = true;  // whether its run time is known: it has a limit, or its program has run before
  Micros start = 0;
  Micros end = 0;
};

// The job will never start because `dependency` did not succeed. The owner must end it.
struct Doomed {
  JobId job = 0;
  JobId dependency = 0;
};
using Action = std::variant<Place, Preempt, Hold, Admission, Doomed, Resize>;

// --- the core ---

class Core;

// All state of the scheduler.
class State {
 public:
  explicit State(Policy policy = {});
  ~State();
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;

  Core& core() { return *core_; }
  const Core& core() const { return *core_; }

 private:
  std::unique_ptr<Core> core_;
};

// Applies the events in order, then decides. `now` never decreases.
std::vector<Action> Step(State& state, std::span<const Event> events, Micros now);

// When Step must be called next (with a Tick) even if nothing happens; kNever: not at all.
Micros NextWake(const State& state);

}  // namespace vrun::sched::core
