// SPDX-License-Identifier: Apache-2.0
// The room of the cluster: the nodes in order of topology and the free room on each. A shape is a kind of pod that some
// job asks for. For every shape there are counters of how many more such pods fit on each node and in each domain of
// each level, so that "can this gang fit there?" is one comparison. Every change is journaled until Commit, so that
// plans can be tried and undone.
//
// Invariants, each checked by a test: fit and slots equal a recount; Undo restores everything exactly; free room is
// negative only if the owner said so (recovered jobs).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/model.h"

namespace vrun::sched::core {

using NodeId = uint32_t;   // in order of first appearance, never reused
using ShapeId = uint32_t;  // reused after Drop
using Domain = uint32_t;   // per level, in order of topology
constexpr NodeId kNoNode = UINT32_MAX;

// Which nodes may take a pod.
struct Constraint {
  std::string pool;
  std::string gpu_type;  // "": any
  std::vector<std::string> labels;
  std::vector<std::string> tolerations;
  // How long a started pod certainly stays; 0: it may be told to leave; kNever: unknown.
  Micros runs = 0;
  std::vector<std::string> nodes = {};  // only these; empty: any
  std::vector<std::string> excluded = {};
  auto operator<=>(const Constraint&) const = default;
};
bool Admits(const Constraint& constraint, const NodeSpec& node);

// Room on one node, always taken or given back as a whole.
struct Room {
  NodeId node = kNoNode;
  std::array<uint16_t, kMaxGpus> milli{};  // per GPU
  std::array<Sharing, kMaxGpus> sharing{};
  std::array<uint64_t, kMaxGpus> sharers{};  // Request::sharers
  std::array<mig::SliceMask, kMaxGpus> mig{};
  mig::Profile profile = 0;  // of the instance
  int64_t milli_cpus = 0;
  int64_t memory_bytes = 0;
  int32_t nics = 0;
  bool operator==(const Room&) const = default;

  uint32_t mask() const;
  size_t gpus() const {  // number of GPUs of which it has a part
    return kMaxGpus - static_cast<size_t>(std::count(milli.begin(), milli.end(), uint16_t{0}));
  }
  // First memory slice of a MIG instance, else -1.
  int8_t mig_start() const;
  int64_t total_milli() const;
};

// What a pod takes on a node besides GPUs.
Room RoomOf(const Request& request, NodeId node);
// Adds the part of a GPU that the pod takes; `slices` only for a MIG instance. The request is not open (fit.h).
void TakeSlice(const Request& request, mig::Model model, int gpu, mig::SliceMask slices, Room* room);

// What is free on a node.
struct FreeRoom {
  std::array<int16_t, kMaxGpus> free_milli{};     // negative: overcommitted, as the owner reported
  std::array<Sharing, kMaxGpus> sharing{};        // kWhole: not shared now
  std::array<uint64_t, kMaxGpus> sharers{};       // of those on a shared GPU
  std::array<mig::SliceMask, kMaxGpus> sliced{};  // MIG: memory slices in use
  int64_t free_cpus = 0;
  int64_t free_memory = 0;
  int32_t free_nics = 0;
  int64_t free_total = 0;  // of free_milli
  uint32_t whole = 0;      // mask of completely free GPUs

  // sign 1: the room becomes free. `usable`: mask of GPUs that may be given to jobs.
  void Apply(const Room& room, int sign, uint32_t usable);
  // Pods that fit on the node with this room; at most UINT16_MAX.
  int32_t Count(const Request& request, mig::Model model, const NodeSpec& node) const;
  // Whether the way of sharing, and those who are there, let a pod that takes part of a GPU onto this one.
  bool Shares(int gpu, const Request& request) const {
    return (whole >> gpu & 1) != 0 || (sharing[gpu] == request.kind() && sharers[gpu] == request.sharers);
  }
};

class Cluster {
 public:
  struct Node : FreeRoom {
    NodeSpec spec;
    mig::Model mig_model = 0;
    uint16_t held = 0;        // number of holds on it: hidden from fit, not from FitOn
    bool up = false;          // known, joined, neither lost nor drained
    bool closed = false;      // for maintenance
    Micros horizon = kNever;  // when it goes out of service
    uint32_t position = 0;    // in order of topology
    uint64_t changes = 0;     // incremented by each change of its room or spec

    int64_t free_milli_total() const { return free_total; }
  };

  // The node is new, back or changed. Room in use stays in use.
  NodeId Up(const NodeSpec& spec);
  void Down(NodeId id);
  // kNoNode when the name is unknown.
  NodeId Find(const std::string& name) const;
  // Registers a node by name only, so that room can be taken from it before it joins.
  NodeId Name(const std::string& name);

  size_t size() const { return nodes_.size(); }
  const Node& node(NodeId id) const { return nodes_[id]; }

  // Hides a node from the counters. Nests.
  void Hold(NodeId id);
  void Unhold(NodeId id);

  // Call Limit this often while the node has a horizon: which pods are gone by then changes with time.
  static constexpr Micros kLimitEvery = kSecond;
  // Pods that start on the node must be gone at `horizon` (see Constraint::runs). When closed, nothing starts there.
  void Limit(NodeId id, Micros horizon, bool closed, Micros now);
  // Whether the horizon or the closing is the only reason that a pod does not fit.
  bool Limited(ShapeId shape, NodeId id) const;

  // Counts references: each Shape needs one Drop.
  ShapeId Shape(const Request& request, const Constraint& constraint);
  void Drop(ShapeId shape);
  const Request& request(ShapeId shape) const { return shapes_[shape].request; }

  // Sorts the nodes again after joins. Required before the functions below. Cheap when nothing joined.
  void Settle();

  // --- counters ---
  int32_t Slots(ShapeId shape, Level level, Domain domain) const {
    return shapes_[shape].slots[static_cast<int>(level)][domain];
  }
  std::span<const int32_t> Slots(ShapeId shape, Level level) const {
    return shapes_[shape].slots[static_cast<int>(level)];
  }
  // By position.
  std::span<const uint16_t> Fit(ShapeId shape) const { return shapes_[shape].fit; }
  // Also counts a held node; 0 for a node that is down or not admitted.
  int32_t FitOn(ShapeId shape, NodeId id) const;
  // Like FitOn, if these rooms of the node were free too.
  int32_t FitWith(ShapeId shape, NodeId id, std::span<const Room* const> freed) const;
  // Like FitOn, if the node were empty and did not go out of service.
  int32_t FitEmpty(ShapeId shape, NodeId id) const;
  static int32_t PodsWhenEmpty(const Request& request, const NodeSpec& node);

  // --- topology ---
  Domain domains(Level level) const { return static_cast<Domain>(first_[static_cast<int>(level)].size() - 1); }
  // Positions [First(l, d), First(l, d + 1)).
  uint32_t First(Level level, Domain domain) const { return first_[static_cast<int>(level)][domain]; }
  Domain DomainOf(Level level, uint32_t position) const { return domain_[static_cast<int>(level)][position]; }
  NodeId At(uint32_t position) const { return order_[position]; }

  // --- changes ---
  void Take(const Room& room) { Change(room, -1); }
  void Release(const Room& room) { Change(room, 1); }
  // Chooses the GPUs of a pod on the node, which must fit it. Of an open request it takes what fit.h says. They are in
  // as few groups as possible. A slice goes on `slice_gpu`; if that is negative, on the fullest GPU that takes it. A
  // MIG instance goes at `mig_start`, or where it leaves the most possibilities.
  Room Choose(const Request& request, NodeId id, int slice_gpu = -1, int mig_start = -1) const;

  // Undo(Mark()) reverts every Take and Release between the two.
  size_t Mark() const { return journal_.size(); }
  void Undo(size_t mark);
  void Commit() { journal_.clear(); }

  // Whether all counters equal a recount; for tests.
  bool Recount() const;
  // GPU room of all nodes that are up.
  int64_t total_milli() const { return total_milli_; }

 private:
  struct ShapeState {
    Request request;
    Constraint constraint;
    std::vector<uint8_t> admits;  // by node id
    std::vector<uint16_t> fit;    // by position
    std::array<std::vector<int32_t>, kLevels> slots;
    uint32_t references = 0;
    uint64_t dropped = 0;  // time of the last drop; 0: in use
    bool exists = false;
  };
  struct Entry {
    Room room;
    int sign;
  };
  using Key = std::pair<Request, Constraint>;

  static bool Fits(const Constraint& constraint, const Node& node, Micros now) {
    return Admits(constraint, node.spec) &&
           (node.horizon == kNever || constraint.runs == 0 ||
            (constraint.runs < node.horizon && now + kLimitEvery + constraint.runs <= node.horizon));
  }
  static bool Open(const Node& node) { return node.up && !node.closed; }
  int32_t FitNow(const ShapeState& shape, const Node& node, NodeId id) const;
  void Change(const Room& room, int sign);
  void Apply(const Room& room, int sign);
  void Refresh(NodeId id);
  void Fill(ShapeState& shape);
  void Retire();

  std::vector<Node> nodes_;
  std::unordered_map<std::string, NodeId> by_name_;
  std::vector<ShapeState> shapes_;
  std::vector<ShapeId> active_;  // existing shapes, ascending
  std::map<Key, ShapeId> by_key_;
  uint64_t drops_ = 0;
  size_t unused_ = 0;

  bool settled_ = true;
  std::vector<NodeId> order_;
  std::array<std::vector<Domain>, kLevels> domain_;
  std::array<std::vector<uint32_t>, kLevels> first_ = {std::vector<uint32_t>{0}, {0}, {0}, {0}, {0}, {0}};
  std::vector<Entry> journal_;
  int64_t total_milli_ = 0;
  Micros now_ = 0;  // as of the last Limit
};

}  // namespace vrun::sched::core
