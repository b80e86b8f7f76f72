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

#include "sched/model.h"
#include "sched/policy.h"

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
// Gone for good: ended, failed for ever, or cancelled. `completed` says that its run time teaches something.
struct JobEnded {
  JobId job = 0;
  bool completed = true;
};
// Nothing happened but time.
struct Tick {};
using Event = std::variant<NodeUp, NodeLost, NodeDrained, TeamSet, JobSubmitted, JobStarted, JobSaved, JobStopped,
                           JobEnded, Tick>;

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
  kWorth,      // the beneficiary's wait is worth more than this costs
  kGuarantee,  // the room belongs to the beneficiary's team, this one borrowed it
  kBackfill,   // it used room held for the beneficiary
  kMove,       // it makes room by going elsewhere: a Place follows when it has stopped
};
// The running job is to leave. Answered by JobStopped or JobEnded; its room goes to `beneficiary`.
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
using Action = std::variant<Place, Preempt, Hold>;

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
