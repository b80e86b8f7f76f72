// SPDX-License-Identifier: Apache-2.0
// The durable state of the controller, for any backend. One contract test suite runs on every implementation.
//
// A job that is read has the pods of its present attempt, and those of the attempt that leaves.
//
// One thread. Changes are made between Begin and Commit and survive any crash after Commit. Once a statement has
// failed, the transaction cannot be committed: failure() has the reason, and every other call fails until Rollback.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "control/store/positions.h"
#include "proto/common.pb.h"
#include "proto/local.pb.h"
#include "proto/notify.pb.h"

namespace vrun::control {

// What a job takes. A job that names no cpus is accounted one core.
struct Needs {
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int64_t gpus = 0;
  std::string gpu_type;  // "": any
  // As in v1.Resources.
  uint32_t gpu_milli = 0;
  uint32_t gpu_burst_milli = 0;
  v1::GpuSharing gpu_sharing = v1::GPU_SHARING_UNSPECIFIED;
  std::string mig_profile = {};
  int64_t gpu_memory_bytes = 0;
  uint64_t sharers = 0;  // sched::core::Request: who may have a share of the same GPU
  bool operator==(const Needs&) const = default;
};

inline bool IsEnd(v1::JobState state) { return state >= v1::COMPLETED && state <= v1::OUT_OF_MEMORY; }
// Of an attempt or a pod: it has ended and its writes are home.
inline bool IsOver(v1::JobState state) { return IsEnd(state) || state == v1::PREEMPTED; }

// How a pod belongs to an attempt whose number of pods changes. Numbers are stored.
enum class Membership : uint8_t {
  kFull = 0,
  kJoining = 1,  // added while the attempt was there already; its command has not run yet
  kLeaving = 2,  // told to leave: the attempt goes on without it. Also when it has left
  kDropped = 3,  // it could not join
};

// One pod of an attempt: where it runs and how far it has come.
struct PodRow {
  uint32_t pod = 0;  // index in the gang
  std::string node;
  std::string token;
  uint32_t gpu_mask = 0;              // GPUs of its node
  v1::JobState state = v1::STARTING;  // also PREEMPTED, as of an attempt
  bool ready = false;                 // all is prepared, and it waits for Go
  std::string exit;                   // serialized ExitRecord; "": none
  Membership membership = Membership::kFull;
  std::string leaving;       // why it was told to leave, for people
  int32_t mig_start = -1;    // of a MIG instance: its first memory slice
  uint32_t gpu_milli = 0;    // of a share
  std::string mig_profile;   // of an instance
  std::string usage;         // serialized GpuUsage, the latest; "": none. Stored with the pod, and every few minutes
  int64_t usage_stored = 0;  // when it was; monotonic; not stored
  // Since when it has had its room, on the clock of the accounting; 0: it has none, or that was accounted.
  int64_t held_since_us = 0;
};

// Why the controller ends an attempt of its own accord. Numbers are stored.
enum class Ending : uint8_t {
  kNone = 0,
  kFailed = 1,        // a rank has failed, and the others end with it
  kStragglers = 2,    // a rank has ended, and the time that the others had since then is over
  kNotStarted = 3,    // a pod could not be started; the gang may wait again
  kPodLost = 4,       // the node of a pod is lost or was restarted
  kPodGone = 5,       // the node of a pod has no record of it
  kLauncherOver = 6,  // the command of the first pod has ended, and the other pods only waited for it (Gang.launcher)
};

struct JobRow {
  uint64_t id = 0;
  std::string user;
  std::string request_id;
  std::string home_id;
  std::string pool;
  std::string name;
  Needs needs;                // as accounted
  v1::Scheduling scheduling;  // with its team filled in
  v1::JobState state = v1::PENDING;
  std::string reason;  // why it ended; "" when the exit record says enough
  int64_t submitted_us = 0;
  int64_t started_us = 0;  // 0: not yet
  int64_t ended_us = 0;
  uint32_t attempt = 0;  // 0: never placed
  uint64_t epoch = 0;
  v1::Gang gang;             // as submitted; empty: one process in one sandbox
  std::vector<PodRow> pods;  // of the attempt, in order; empty while the job waits
  bool cancelled = false;    // somebody has asked to end it
  int32_t cancel_signal = 0;
  Ending ending = Ending::kNone;  // of the attempt
  std::string failure;            // the first failure of the attempt, for people: "rank 3 on n2: exit 1"
  uint32_t failed_pod = 0;        // whose failure that is
  uint32_t failed_starts = 0;     // attempts that ended as kNotStarted
  int64_t first_end_us = 0;       // when the first pod of the attempt ended with success; 0: none has
  std::string stopping;           // set when it was told to leave: for which job, as text for people
  int64_t stopping_us = 0;        // when it was told to leave
  uint32_t preemptions = 0;
  int64_t saved_us = 0;  // when the program last said that its state is safe; 0: never
  int64_t lost_us = 0;   // run time of earlier attempts that was not saved
  // An attempt whose commands have ended, but not all of whose writes are home yet. The next attempt must not start
  // before.
  struct Leaving {
    uint32_t attempt = 0;  // 0: none
    uint64_t epoch = 0;
    std::vector<PodRow> pods;  // those whose writes are not home
  } leaving;
  std::string gpu_fault;  // what happened to a GPU while the job had it, and whose fault it was, for people
  std::string spec;  // serialized SubmitRequest; filled only by reads that say so. "" for an element: its array has it
  uint64_t spec_bytes = 0;   // its length
  uint32_t elements = 0;     // of an array: how many it has; 0: it is no array
  uint64_t array = 0;        // of an element: its array; 0: it is none
  uint32_t array_index = 0;  // of an element
  // Of an element that was released while its array ran as many elements as it may: it waits until one of them ends.
  bool parked = false;
  // Since when it has waited for its present or next attempt, on the clock of the accounting; 0: that was accounted.
  int64_t waits_since_us = 0;
  v1::JobNotify notify;  // without `who`: nobody is told
};

// The elements of an array. Those that are jobs have rows of their own.
struct ArrayRow {
  uint64_t job = 0;
  v1::Array array;
  Positions left;     // elements that are no jobs yet, and were not cancelled
  uint64_t next = 0;  // no position before this one is left
  Positions held;     // those of `left` that were told to wait
  Positions gated;    // those of `left` that wait for the element of another array (Scheduling.after_corresponding)
  uint64_t completed = 0;  // elements that have ended
  uint64_t failed = 0;
  uint64_t cancelled = 0;  // also those that never became jobs
  std::string exit;        // serialized ExitRecord of the element with the highest exit status; "": none has ended
};

struct ElementEnd {
  uint32_t index = 0;
  bool completed = false;
};

struct AttemptRow {
  uint64_t job = 0;
  uint32_t attempt = 0;
  uint64_t epoch = 0;
  v1::JobState state = v1::STARTING;  // STARTING until it is over
  int64_t placed_us = 0;
  int64_t ended_us = 0;
  std::string reason = {};        // why it was stopped
  std::vector<PodRow> pods = {};  // filled only by reads
};

// How a pod came to give up its room. Numbers are stored.
enum class IntervalEnd : uint8_t {
  kRuns = 0,  // it has not
  kCompleted = 1,
  kFailed = 2,
  kTimeLimit = 3,
  kOutOfMemory = 4,
  kCancelled = 5,
  kPreempted = 6,
  kNodeLost = 7,  // or a GPU of the node had a fault
  kNotStarted = 8,
  kResized = 9,     // the job goes on without the pod
  kContinued = 10,  // the pod goes on in the next interval: the clock was set
};

// For whom a pod has its room, as far as it is accounted.
struct Holder {
  std::string user;
  std::string team;
  std::string project;
  std::string pool;
  std::string gpu_type;  // "": it has no GPU
  auto operator<=>(const Holder&) const = default;
};

// A pod had its room from start_us until end_us. Intervals of one pod do not overlap.
struct IntervalRow {
  uint64_t job = 0;
  uint32_t attempt = 0;
  uint32_t pod = 0;
  int64_t start_us = 0;
  int64_t end_us = 0;
  std::string node;       // filled by IntervalsOf only
  int64_t gpu_milli = 0;  // thousandths of GPUs
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  IntervalEnd ended = IntervalEnd::kRuns;
  int64_t lost_us = 0;     // so much of its end was not saved
  int64_t busy_us = 0;     // integral of utilization over its GPUs
  int64_t metered_us = 0;  // the time that this covers
  int64_t waited_us = -1;  // how long the attempt had waited; -1: it does not begin here
};

// What a holder had on one day, of jobs that were removed.
struct DayRow {
  int64_t day_us = 0;  // its beginning
  std::string sums;    // serialized DaySums
};

// An ended job that may be removed.
struct OldJob {
  uint64_t id = 0;
  int64_t ended_us = 0;
  uint64_t array = 0;          // of which it is an element
  int64_t array_ended_us = 0;  // 0: it has not, or there is none
  bool is_array = false;
};

// Where the clock of the accounting stood.
struct AccountingClock {
  std::string boot_id;    // of the host
  int64_t monotonic = 0;  // of this boot
  int64_t at_us = 0;      // the same moment on the clock of the accounting
};

struct NodeRow {
  std::string name;
  std::string pool;
  std::string total;  // serialized v1.Resources
  std::vector<std::string> addresses;
  std::string version;
  uint64_t boot_id = 0;
  int64_t last_seen_us = 0;
  bool lost = false;
  bool draining = false;
  std::string facts;   // serialized v1.NodeFacts
  std::string reason;  // why it drains
  std::string health;  // serialized NodeHealth: what it says of its GPUs, and what was done about it
};

// Nodes that will be out of service.
struct MaintenanceRow {
  std::string name;
  std::vector<std::string> nodes;
  int64_t from_us = 0;
  int64_t until_us = 0;
};

// Which jobs FindJobs returns. Empty fields: any.
struct JobFilter {
  uint64_t before = 0;  // only lower ids; 0: all
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  std::string user = {}, pool = {}, name = {};
};
struct JobPage {
  std::vector<JobRow> jobs;  // with their specs, newest first
  uint64_t next = 0;         // `before` of the next page; 0: there is none
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Status Begin() = 0;
  virtual Status Commit() = 0;  // on an error nothing has changed
  virtual void Rollback() = 0;
  virtual const std::optional<Error>& failure() const = 0;

  virtual Result<uint64_t> InsertJob(const JobRow& job) = 0;  // with its spec; returns the id, never used before
  virtual Status UpdateJob(const JobRow& job) = 0;  // the fields that change during a job's life, not its pods
  virtual Status PutPod(uint64_t job, uint32_t attempt, const PodRow& pod) = 0;
  virtual Status PutAttempt(const AttemptRow& attempt) = 0;
  virtual Status InsertArray(const ArrayRow& array) = 0;
  // What changes during its life. `sets`: also what is left, held and gated, not only where the next one is.
  virtual Status UpdateArray(const ArrayRow& array, bool sets) = 0;
  virtual Status PutNode(const NodeRow& node) = 0;
  virtual Status PutMaintenance(const MaintenanceRow& window) = 0;  // replaces the one of this name
  virtual Status DropMaintenance(const std::string& name) = 0;
  // REQUIRES: there is none of this pod with this start. busy_us and metered_us are those since the pod began: what
  // earlier intervals of the pod have of them is taken off.
  virtual Status AddInterval(const Holder& holder, const IntervalRow& interval) = 0;
  // Earlier intervals of the pod of `last` that it went on after, because the clock was set, end as that one does: what
  // they have after `from` was lost.
  virtual Status LoseEarlier(const IntervalRow& last, int64_t from) = 0;
  virtual Status PutAccountingClock(const AccountingClock& clock) = 0;
  // Sets what the holder had on this day.
  virtual Status PutDay(const Holder& holder, const DayRow& day) = 0;
  // With its attempts, pods and intervals. Of an array: after all of its elements.
  virtual Status DropJob(uint64_t id) = 0;
  // A message that waits for its delivery. Returns its number, never used before.
  virtual Result<uint64_t> AddMessage(const std::string& message) = 0;
  virtual Status DropMessage(uint64_t number) = 0;
  // A small value that survives under this name.
  virtual Status PutNote(const std::string& name, const std::string& value) = 0;
  // The scheduler's journal: rows in order; a new journal replaces the old.
  virtual Status AppendJournal(const std::string& row) = 0;
  virtual Status ClearJournal() = 0;

  virtual Result<std::optional<uint64_t>> FindRequest(const std::string& user, const std::string& request_id) = 0;
  virtual Result<std::optional<JobRow>> GetJob(uint64_t id) = 0;  // with its spec
  virtual Result<std::vector<JobRow>> UnfinishedJobs() = 0;       // in order of ids
  virtual Result<std::optional<v1::JobState>> StateOfJob(uint64_t id) = 0;
  virtual Result<std::optional<ArrayRow>> GetArray(uint64_t job) = 0;
  virtual Result<std::vector<ArrayRow>> UnfinishedArrays() = 0;
  virtual Result<std::optional<uint64_t>> FindElement(uint64_t array, uint32_t index) = 0;  // the job that it is
  virtual Result<std::vector<ElementEnd>> EndedElements(uint64_t array) = 0;                // in order of indexes
  // With their specs, newest first. At most `limit`; of those that have not ended: without elements that wait, and
  // besides them as many arrays.
  virtual Result<std::vector<JobRow>> ListJobs(bool ended_too, int limit) = 0;
  // Ended ones too. Looks at a bounded number of jobs, so a page may have fewer than `limit` jobs and a next one.
  virtual Result<JobPage> FindJobs(const JobFilter& filter, int limit) = 0;
  virtual Result<std::vector<NodeRow>> Nodes() = 0;
  virtual Result<std::vector<MaintenanceRow>> Maintenance() = 0;  // in order of names
  virtual Result<uint64_t> LastEpoch() = 0;
  virtual Result<std::vector<AttemptRow>> Attempts(uint64_t job) = 0;  // the first one first
  // In order of ids, without specs and without arrays, whose elements count: those after the id `after`, or the last
  // `limit` when `newest`.
  virtual Result<std::vector<JobRow>> EndedJobs(uint64_t after, int limit, bool newest) = 0;
  virtual Result<std::vector<std::string>> Journal() = 0;
  // Those that end after `from` and start before `to`, and those that start at `from`; in order of ends. A holder stays
  // where it is until the call returns.
  virtual Status ReadIntervals(int64_t from, int64_t to,
                               const std::function<void(const Holder&, const IntervalRow&)>& each) = 0;
  virtual Result<std::vector<std::pair<Holder, IntervalRow>>> IntervalsOf(
      uint64_t job) = 0;  // of an array: of its elements; in order of starts
  // Also of those that were dropped with their jobs.
  virtual Result<int64_t> FirstInterval() = 0;  // when the first one started; 0: there is none
  virtual Result<int64_t> LastInterval() = 0;   // when the last one ended
  virtual Result<std::optional<AccountingClock>> GetAccountingClock() = 0;
  virtual Result<std::string> NameOfJob(uint64_t id) = 0;  // "": there is no such job
  // Days that have something of [from, to). A holder stays where it is until the call returns.
  virtual Status ReadDays(int64_t from, int64_t to, const std::function<void(const Holder&, const DayRow&)>& each) = 0;
  virtual Result<std::string> GetDay(const Holder& holder, int64_t day) = 0;  // "": there is none
  // Jobs that ended before this, in order of their ends and ids, after the one at `after`.
  virtual Result<std::vector<OldJob>> OldJobs(int64_t ended_before, const OldJob& after, int limit) = 0;
  virtual Result<bool> HasElements(uint64_t array) = 0;
  virtual Result<std::vector<std::pair<uint64_t, std::string>>> Messages() = 0;  // in order of numbers
  virtual Result<std::string> GetNote(const std::string& name) = 0;              // "": there is none
};

}  // namespace vrun::control
