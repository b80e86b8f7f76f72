// SPDX-License-Identifier: Apache-2.0
// What the scheduler core knows of the world: jobs, nodes, teams. Plain data, given by the owner, never invented here.
//
// Units: time is integer microseconds of one clock of any origin that never runs backwards; GPUs are counted whole or
// in thousandths (milli); money is a relative price per GPU. No field is read from anywhere else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/model/mig.h"

namespace vrun::sched::core {

using JobId = uint64_t;
using Micros = int64_t;
constexpr Micros kSecond = 1'000'000;
constexpr Micros kHour = 3600 * kSecond;
constexpr Micros kNever = INT64_MAX;

constexpr int kMaxGpus = 16;      // of one node
constexpr int32_t kMilli = 1000;  // a whole GPU

// What a job is for. The order is the order of importance; its worth is Policy::class_weight.
enum class Class : uint8_t { kScavenger, kExperiment, kTraining, kProduction, kInference };
constexpr int kClasses = 5;

// Where pods lie together, tightest first. An island is a set of nodes that share one NVLink fabric (NVL72); a node
// that names none is an island by itself. Nodes that name no rack (block, zone) share one inside the next level.
enum class Level : uint8_t { kNode, kIsland, kRack, kBlock, kZone, kCluster };
constexpr int kLevels = 6;

// How the pods on a GPU share it. It is whole or shared in one way, and becomes another only while nobody is on it.
enum class Sharing : uint8_t {
  kWhole,      // one pod has it, or nobody
  kMps,        // side by side, each with its share
  kTimeSlice,  // in turns
  kMig,        // each with an instance, of its own memory and compute slices (mig.h)
};

// What one pod takes. Whole GPUs, a share of one GPU and a MIG instance exclude each other.
struct Request {
  int32_t gpus = 0;
  int32_t gpu_milli = 0;  // 1..999: a share
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  Sharing sharing = Sharing::kMps;  // of gpu_milli: kMps or kTimeSlice
  mig::Profile mig = 0;             // mig::FindProfile; 0: none
  int32_t nics = 0;                 // network interfaces of its own (RDMA), nobody else's
  auto operator<=>(const Request&) const = default;

  // Of a MIG instance: what it takes at least. On some models it takes more.
  int32_t total_milli() const { return gpus * kMilli + gpu_milli + (mig == 0 ? 0 : mig::NominalMilli(mig)); }
  bool slice() const { return gpu_milli > 0 || mig != 0; }
  Sharing kind() const { return mig != 0 ? Sharing::kMig : gpu_milli > 0 ? sharing : Sharing::kWhole; }
};

// A gang is one or more roles; all pods of all roles (of an elastic one: enough of them) start together or none does.
struct Role {
  std::string name;
  int32_t pods = 1;
  Request request;
  // Elastic: the gang starts with so many pods of this role or more, grows to `pods` into room that nobody else can
  // use, and gives that back when somebody can. 0: all of them or none. At most one role of a gang.
  int32_t min_pods = 0;
  // Blocks of so many pods, each within one domain of segment_level; the gang grows and shrinks by blocks. 0: none.
  int32_t segment = 0;
  Level segment_level = Level::kIsland;
  // The blocks (without `segment`: the pods) go to as many domains of segment_level as possible, not to as few.
  bool spread = false;

  int32_t least() const { return min_pods > 0 ? min_pods : pods; }
  int32_t block() const { return segment > 0 ? segment : 1; }
};

// What is known of saving and restoring a job's state; negative: unknown, Policy's default or what was learned.
struct Checkpoint {
  bool on_demand = false;  // it saves when told to stop; otherwise stopping it loses all since its last save
  Micros save = -1;        // seconds of all its GPUs that one save takes
  Micros restore = -1;     // from being placed again to making progress, work since the save not counted
  Micros period = 0;       // it saves by itself this often; 0: never
  Micros resize = -1;      // how long an elastic gang makes no progress when it changes its size
};

// Ended by then it is worth `value` thousandths of what a deadline is worth.
struct DeadlineStep {
  Micros at = 0;
  int64_t value = 0;
};

struct JobSpec {
  JobId id = 0;
  std::string pool;
  std::string team;  // one never heard of is a team of its own with weight 1 and no quota
  std::string user;
  std::string name;  // recurring work keeps its name: run times are learned per (team, user, name, size)
  Class klass = Class::kTraining;
  bool preemptible = true;
  std::vector<Role> roles;

  // Acceptable GPU types, best first; the gang gets one of them. Empty: any, then a gang may mix
  // them, and a quota of the type where its pods would fit best may keep it waiting though another type is free.
  std::vector<std::string> gpu_types;
  std::vector<std::string> labels;       // a node must have all of these
  std::vector<std::string> tolerations;  // taints that it does not mind
  Level required = Level::kCluster;      // all pods within one domain of this level
  Level preferred = Level::kCluster;     // worth waiting for as long as the slowdown without it would cost

  Micros submitted = 0;
  Micros begin_after = 0;
  Micros deadline = 0;  // absolute; 0: none
  // Whether it can be met is said when it is submitted, and what was said is kept (core.h, Admission).
  bool hard_deadline = false;
  std::vector<DeadlineStep> deadline_steps;  // soft ones, ascending; later ones are worth less
  Micros estimate = 0;                       // its owner's guess of the run time; 0: none
  Micros limit = 0;                          // it is ended when it has run so long; 0: no such limit
  // Starts when none of these is known any more: afterany, whatever became of them; afterok, if all of them succeeded,
  // else it never starts (core.h, Doomed). One that is not known when this is submitted counts as ended well.
  std::vector<JobId> after;
  std::vector<JobId> after_ok;
  Checkpoint checkpoint;
  Micros notice = 0;                  // it wants to be told so long before it has to be gone; 0: no wish
  bool may_meet_maintenance = false;  // it starts though it may outlast the time until a window: it is told to leave
};

struct NodeSpec {
  std::string name;
  std::string pool;
  std::string gpu_type;
  int32_t gpus = 0;
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int32_t nics = 0;                       // that are handed out one by one
  std::string island, rack, block, zone;  // unique within the next larger one
  // GPUs that are close to each other (one PCIe switch, one NUMA node), as bit masks; a pod gets GPUs of as few groups
  // as possible. Empty: all are equal.
  std::vector<uint32_t> gpu_groups;
  std::string mig_model;  // mig::FindModel; "": its GPUs are not cut into instances
  std::vector<std::string> labels;
  std::vector<std::string> taints;  // only jobs that tolerate all of them
  uint32_t bad_gpus = 0;            // bit mask: broken, nobody gets them
  bool suspect = false;             // it misbehaved: used when there is no other that fits as well
  int64_t price_milli = 1000;       // of a GPU, relative: what usage is charged with
  bool operator==(const NodeSpec&) const = default;
  uint32_t usable() const { return ((1u << gpus) - 1) & ~bad_gpus; }
};

// Nodes that will be out of service.
struct Maintenance {
  std::string name;
  std::vector<std::string> nodes;
  Micros from = 0;
  Micros until = 0;
};

// What a team may have of one GPU type. Thousandths of GPUs.
struct Quota {
  std::string gpu_type;       // "": of all types together
  int64_t guarantee = 0;      // it gets this back from borrowers; work that cannot be preempted stays within it
  int64_t limit = INT64_MAX;  // never more
};

// GPU time that a team may use, at the price of the nodes. It is refilled evenly; what is not used is kept up to
// `burst`. When it is used up the team's jobs are scavengers until a tenth of it is there again; what they use
// meanwhile is not charged.
struct Budget {
  int64_t gpu_seconds = 0;  // a period; 0: no budget
  Micros period = 0;
  int64_t burst = 0;  // GPU-seconds; 0: those of one period
};

// Teams form a tree: what a team uses counts for all above it.
struct TeamSpec {
  std::string name;
  std::string parent;  // "": top level; must be known before its children
  int64_t weight = 1000;
  std::vector<Quota> quotas;
  Budget budget;
};

// Where one pod of a gang runs.
struct PodPlace {
  int32_t role = 0;  // index into JobSpec::roles
  std::string node;
  uint32_t gpu_mask = 0;  // of a slice: the one GPU
  int8_t mig_start = -1;  // of a MIG instance: its first memory slice
  bool operator==(const PodPlace&) const = default;
};

// kInvalid says which field is wrong and why.
Status Validate(const JobSpec& job);
Status Validate(const NodeSpec& node);
Status Validate(const Maintenance& window);

}  // namespace vrun::sched::core
