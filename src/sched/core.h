// SPDX-License-Identifier: Apache-2.0
// The scheduler core: pure, deterministic, no I/O, no clock, no threads. Its owner feeds events and executes actions;
// the same events at the same times give the same actions in the same order, in production and in a simulator.
//
// The life of a job here: submitted, pending, (claiming: victims leave for it), running, (stopping: told to leave),
// pending again or gone. Room is accounted from the action that gives it to the event that returns it.
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

// A node is there: new, back, or changed. What runs on it stays accounted. Ignored when Validate refuses it.
struct NodeUp {
  NodeSpec node;
};
// Nothing is placed on it until it is up again; what runs there stays accounted until its end is told.
struct NodeLost {
  std::string name;
};
struct NodeDrained {
  std::string name;
};
// A team is new or changed. Lowered limits stop new work, they end nothing.
struct TeamSet {
  TeamSpec team;
};
// Ignored when known already or when Validate refuses it.
struct JobSubmitted {
  JobSpec job;
};
// Recovery: the job (submitted before) holds this by an earlier decision. Believed even where it exceeds the node.
struct JobStarted {
  JobId job = 0;
  std::vector<PodPlace> pods;
  Micros since = 0;
};
// The state of the running job as of `at` is safe. `took` > 0 is learned as the time of a save.
struct JobSaved {
  JobId job = 0;
  Micros at = 0;
  Micros took = 0;
};
// It left its room without having ended (a Preempt obeyed, its node died): pending again. `lost` is the run time that
// has to be repeated.
struct JobStopped {
  JobId job = 0;
  Micros lost = 0;
};
// Gone for good: ended, failed for ever, or cancelled. `completed` says that its run time teaches something;
// `succeeded` that it completed and all is well, for those that come after it only then.
struct JobEnded {
  JobId job = 0;
  bool completed = true;
  bool succeeded = true;
};
// What a Resize took away has left its room.
struct JobResized {
  JobId job = 0;
};
// Announced or changed; ignored when Validate refuses it. Over at its end or when that is told.
struct MaintenanceSet {
  Maintenance window;
};
struct MaintenanceOver {
  std::string name;
};
// Nothing happened but time.
struct Tick {};
using Event = std::variant<NodeUp, NodeLost, NodeDrained, TeamSet, JobSubmitted, JobStarted, JobSaved, JobStopped,
                           JobEnded, Tick, MaintenanceSet, MaintenanceOver, JobResized>;

// --- actions ---

// The terms of a decision, in the unit of Policy's formulas: seconds of waiting of a job of weight 1 and one GPU.
// Logged as they are, so that explanations and tuning read the same numbers.
struct Terms {
  int64_t gain = 0;         // what the beneficiary's shorter wait is worth, thousandths
  int64_t price = 0;        // what it costs the victims, thousandths
  Micros wait_without = 0;  // expected of the beneficiary if nobody is preempted
  Micros remaining = 0;     // expected of the victim
  int64_t lost = 0;         // GPU-seconds
};

// What a job was worth at a moment: the terms of its value density, log2 in 1/65536; their sum orders the queue.
struct Worth {
  int32_t klass = 0;
  int32_t remaining = 0;  // -(expected time to completion and size)
  int32_t deadline = 0;
  int32_t fairness = 0;
  int32_t growth = 0;  // with waiting
  int32_t total() const { return klass + remaining + deadline + fairness + growth; }
};

// Something that was decided about a job (explain.h, Why).
struct Decision {
  enum class Kind : uint8_t {
    kStarted,      // there was room
    kClaimed,      // others leave or shrink for it; `other` is the first of them
    kStartedLate,  // they have left
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

// The whole gang starts there.
struct Place {
  JobId job = 0;
  std::vector<PodPlace> pods;
  std::string gpu_type;  // chosen of the alternatives; "" when there are none
};

enum class StopMode : uint8_t {
  kKill,          // at once: work since the last save is lost
  kSave,          // save, then stop
  kAfterItsSave,  // its own next save is near: stop after it
};
enum class StopReason : uint8_t {
  kWorth,        // the beneficiary's wait is worth more than this costs
  kGuarantee,    // the room belongs to the beneficiary's team, this one borrowed it
  kBackfill,     // it used room held for the beneficiary
  kMove,         // it makes room by going elsewhere: a Place follows when it has stopped
  kMaintenance,  // its node is taken out of service; there is no beneficiary
};
// The running job is to leave. Answered by JobStopped or JobEnded; its room goes to `beneficiary` (0: to nobody).
struct Preempt {
  JobId job = 0;
  JobId beneficiary = 0;
  StopMode mode = StopMode::kKill;
  StopReason reason = StopReason::kWorth;
  Terms terms;
};

// The job gets these nodes as they become free, expected by `start`. Information: nothing needs to be done.
struct Hold {
  JobId job = 0;
  std::vector<std::string> nodes;
  Micros start = 0;
};

// An elastic gang gets these pods more at once, or is to do without these. The latter is answered by JobResized (or
// JobStopped, JobEnded); their room goes to `beneficiary`.
struct Resize {
  JobId job = 0;
  std::vector<PodPlace> pods;
  bool grow = false;
  JobId beneficiary = 0;
  Terms terms;
};

// The answer to a job with a hard deadline, in the step that it was submitted in, or, if it comes after others or has a
// begin time, in which it may begin. Met: it starts now or gets a hold, and by its limit, or by what its own program
// has needed (nine times of ten), it ends in time. Not met: it is served as if its deadline were soft; `end` is when it
// would, kNever when nothing is known to make room. A second one, which is not met, takes back the first: what was
// expected has not happened. There is no third.
struct Admission {
  JobId job = 0;
  bool met = false;
  bool known = true;  // how long it runs: it has a limit, or its program was seen
  Micros start = 0;
  Micros end = 0;
};

// The job will never start, since `dependency` did not succeed. Its owner ends it.
struct Doomed {
  JobId job = 0;
  JobId dependency = 0;
};
using Action = std::variant<Place, Preempt, Hold, Admission, Doomed, Resize>;

// --- the core ---

class Core;

// Everything that the scheduler knows.
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

// When Step wants to be called next though nothing happens (a Tick); kNever: not at all.
Micros NextWake(const State& state);

}  // namespace vrun::sched::core
