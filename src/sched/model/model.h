// SPDX-License-Identifier: Apache-2.0
// Input data of the scheduler core: jobs, nodes, teams. Plain data that the owner supplies.
//
// Units: time is integer microseconds of one clock with any origin that never runs backwards; GPUs are counted whole or
// in thousandths (milli); money is a relative price per GPU. The core reads nothing else.
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
constexpr int64_t kGiB = int64_t{1} << 30;

// What a job is for, in order of importance. Policy::class_weight gives the worth.
enum class Class : uint8_t { kScavenger, kExperiment, kTraining, kProduction, kInference };
constexpr int kClasses = 5;

// How close pods are to each other, tightest level first. An island is a set of nodes that share one NVLink fabric
// (NVL72); a node that names none is its own island. Nodes that name no rack (block, zone) share an unnamed one inside
// the next level.
enum class Level : uint8_t { kNode, kIsland, kRack, kBlock, kZone, kCluster };
constexpr int kLevels = 6;

// How the pods on a GPU share it. The mode changes only while no pod is on the GPU.
enum class Sharing : uint8_t {
  kWhole,      // one pod has it, or none
  kMps,        // side by side, each with its share
  kTimeSlice,  // in turns
  kMig,        // each with its own instance: memory and compute slices (mig.h)
};

// What one pod takes. Whole GPUs, a share of one GPU and a MIG instance exclude each other. A request with none of them
// but with gpu_memory is open: each node gives the smallest of the three that has so much (fit.h).
struct Request {
  int32_t gpus = 0;
  int32_t gpu_milli = 0;  // 1..999: a share
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  Sharing sharing = Sharing::kMps;  // of gpu_milli, and of an open request that gets a share: kMps or kTimeSlice
  mig::Profile mig = 0;             // mig::FindProfile; 0: none
  int32_t nics = 0;                 // network interfaces (RDMA) that only this pod uses
  bool distinct = false;            // no other pod of its role on its node
  // Of a share: only pods with the same number are on one GPU at the same time, so that the owner says who trusts whom.
  // Whole GPUs and MIG instances are isolated and have no such number.
  uint64_t sharers = 0;
  int64_t gpu_memory = 0;  // bytes that each GPU, share or instance has at least
  auto operator<=>(const Request&) const = default;

  bool open() const { return gpu_memory > 0 && gpus == 0 && gpu_milli == 0 && mig == 0; }
  // For a MIG instance the least that it takes: on some models it takes more. For an open request a guess, as if each
  // GPU had kUsualMemory.
  int32_t total_milli() const {
    if (open())
      return static_cast<int32_t>(gpu_memory >= kUsualMemory ? kMilli : gpu_memory * kMilli / kUsualMemory + 1);
    return gpus * kMilli + gpu_milli + (mig == 0 ? 0 : mig::NominalMilli(mig));
  }
  // A part of one GPU. An open request may get a whole one all the same.
  bool slice() const { return gpu_milli > 0 || mig != 0 || open(); }
  Sharing kind() const { return mig != 0 ? Sharing::kMig : gpu_milli > 0 ? sharing : Sharing::kWhole; }  // if not open

  static constexpr int64_t kUsualMemory = 80 * kGiB;
};

// A gang has one or more roles. All pods of all roles start together or none does (of an elastic role: at least
// min_pods).
struct Role {
  std::string name;
  int32_t pods = 1;
  Request request;
  // Elastic: the gang starts with at least this many pods of the role, grows to `pods` while no other job can use the
  // room, and gives it back when one can. 0: not elastic. At most one role of a gang.
  int32_t min_pods = 0;
  // Pods per block. Each block lies within one domain of segment_level; the gang grows and shrinks by blocks. 0: none.
  int32_t segment = 0;
  Level segment_level = Level::kIsland;
  // Put the blocks (without `segment`: the pods) into as many domains of segment_level as possible, not as few.
  bool spread = false;

  int32_t least() const { return min_pods > 0 ? min_pods : pods; }
  int32_t block() const { return segment > 0 ? segment : 1; }
};

// What is known about saving and restoring a job's state. Negative: unknown; Policy's default or a learned value
// applies.
struct Checkpoint {
  bool on_demand = false;  // it saves when told to stop; otherwise stopping it loses all work since its last save
  Micros save = -1;        // time of one save, during which all its GPUs are busy
  Micros restore = -1;     // from its new placement until it makes progress, without repeating the work since the save
  Micros period = 0;       // it saves by itself this often; 0: never
  Micros resize = -1;      // how long an elastic gang makes no progress while it changes its size
};

// Ending by then is worth `value` thousandths of meeting a deadline.
struct DeadlineStep {
  Micros at = 0;
  int64_t value = 0;
};

struct JobSpec {
  JobId id = 0;
  std::string pool;
  std::string team;  // an unknown team is created with weight 1 and no quota
  std::string user;
  std::string name;  // recurring work keeps its name: run times are learned per (team, user, name, size)
  Class klass = Class::kTraining;
  bool preemptible = true;
  std::vector<Role> roles;

  // Acceptable GPU types, best first; the gang gets one of them. Empty: any type, and a gang may mix types. Then a
  // quota of the best-fitting type may keep the gang waiting though another type is free.
  std::vector<std::string> gpu_types;
  std::vector<std::string> labels;       // a node must have all of these
  std::vector<std::string> tolerations;  // taints that the job accepts
  std::vector<std::string> nodes;        // only these nodes; empty: any
  std::vector<std::string> excluded;     // not these nodes
  Level required = Level::kCluster;      // all pods within one domain of this level
  Level preferred = Level::kCluster;     // the job waits for this level as long as the slowdown without it would cost

  Micros submitted = 0;
  Micros begin_after = 0;
  Micros deadline = 0;  // absolute; 0: none
  // Whether the deadline can be met is answered at submission, and a yes is a promise (core.h, Admission).
  bool hard_deadline = false;
  std::vector<DeadlineStep> deadline_steps;  // soft deadlines, ascending; later ones are worth less
  Micros estimate = 0;                       // the owner's estimate of the run time; 0: none
  Micros limit = 0;                          // the job is ended after this run time; 0: no limit
  // Dependencies; an unknown job counts as one that succeeded. afterany: starts when all of them have ended. afterok:
  // starts if all of them succeeded, else never (core.h, Doomed).
  std::vector<JobId> after;
  std::vector<JobId> after_ok;
  Checkpoint checkpoint;
  Micros notice = 0;                  // warning time that it wants before it must leave; 0: none
  bool may_meet_maintenance = false;  // may start even if it might run into a maintenance window; then it is told to
                                      // leave
};

struct NodeSpec {
  std::string name;
  std::string pool;
  std::string gpu_type;
  int32_t gpus = 0;
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int32_t nics = 0;                       // handed out one by one
  std::string island, rack, block, zone;  // names are unique within the next larger domain
  // GPUs that are close to each other (one PCIe switch, one NUMA node), as bit masks. A pod gets GPUs from as few
  // groups as possible. Empty: all are equal.
  std::vector<uint32_t> gpu_groups;
  std::string mig_model;  // mig::FindModel; "": its GPUs are not divided into instances
  // With a mig_model: the GPUs in MIG mode, as a bit mask. They take instances only, and the others take none. 0: each
  // GPU is divided or not, as the pods want.
  uint32_t mig_gpus = 0;
  uint32_t no_mps = 0;     // bit mask of GPUs that cannot be shared by MPS
  int64_t gpu_memory = 0;  // bytes of one GPU; 0: unknown, and no request with gpu_memory fits
  std::vector<std::string> labels;
  std::vector<std::string> taints;  // only jobs that tolerate all of them
  uint32_t bad_gpus = 0;            // bit mask of broken GPUs, which no job gets
  bool suspect = false;             // it misbehaved: used only when no other node fits as well
  int64_t price_milli = 1000;       // relative price of a GPU, with which usage is charged
  bool operator==(const NodeSpec&) const = default;
  uint32_t usable() const { return ((1u << gpus) - 1) & ~bad_gpus; }
  // Those of usable() that may be given in this way.
  uint32_t usable_for(Sharing how) const {
    uint32_t mask = usable();
    if (mig_gpus != 0) mask &= how == Sharing::kMig ? mig_gpus : ~mig_gpus;
    return how == Sharing::kMps ? mask & ~no_mps : mask;
  }
};

// Nodes that will go out of service.
struct Maintenance {
  std::string name;
  std::vector<std::string> nodes;
  Micros from = 0;
  Micros until = 0;
};

// What a team may have of one GPU type. Thousandths of GPUs.
struct Quota {
  std::string gpu_type;       // "": all types together
  int64_t guarantee = 0;      // borrowers must give this back; work that cannot be preempted stays within it
  int64_t limit = INT64_MAX;  // never more
};

// GPU time that a team may use, at the price of the nodes. It is refilled evenly, and unused time is saved up to
// `burst`. When it is used up, the team's jobs are scavengers until a tenth of it is there again; usage in that time is
// not charged.
struct Budget {
  int64_t gpu_seconds = 0;  // per period; 0: no budget
  Micros period = 0;
  int64_t burst = 0;  // GPU-seconds; 0: as many as one period
};

// Teams form a tree: usage of a team counts for all teams above it.
struct TeamSpec {
  std::string name;
  std::string parent;  // "": top level; the parent must be known before its children
  int64_t weight = 1000;
  std::vector<Quota> quotas;
  Budget budget;
};

// Where one pod of a gang runs.
struct PodPlace {
  int32_t role = 0;  // index into JobSpec::roles
  std::string node;
  uint32_t gpu_mask = 0;  // of a share or MIG instance: the one GPU
  int8_t mig_start = -1;  // of a MIG instance: its first memory slice
  // What an open request has got; for others as requested. Neither: whole GPUs, or none.
  int32_t gpu_milli = 0;
  mig::Profile mig = 0;
  bool operator==(const PodPlace&) const = default;
};

// kInvalid says which field is wrong and why.
Status Validate(const JobSpec& job);
Status Validate(const NodeSpec& node);
Status Validate(const Maintenance& window);

}  // namespace vrun::sched::core
