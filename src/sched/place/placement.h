// SPDX-License-Identifier: Apache-2.0
// Where a gang goes. The tightest level is tried first; in it, the domain with the least room left over. Inside a
// domain, the children with the most room are taken until one child fits the remainder, and of those the tightest, so
// that few domains are crossed. Among nodes: the smallest rise of fragmentation, then the tightest fit, then the lowest
// position. GPUs come from as few groups as possible. Blocks of a segmented role are placed one by one, in few or in
// many domains of their level.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "sched/model/cluster.h"
#include "sched/place/fragmentation.h"

namespace vrun::sched::core {

// A gang's needs in terms of shapes of a cluster.
struct Demand {
  struct Part {  // of one role
    Request request;
    int32_t pods = 0;
    int32_t role = 0;  // index in the job
    // See Role. For an elastic role `pods` is the minimum.
    int32_t most = 0;  // maximum; 0: the same as `pods`
    int32_t segment = 0;
    Level segment_level = Level::kNode;
    bool spread = false;

    bool blocks() const { return segment > 1 || spread; }
    int32_t block() const { return segment > 0 ? segment : 1; }
  };
  struct Alternative {
    std::string gpu_type;         // "": any
    std::vector<ShapeId> shapes;  // by part
  };
  std::vector<Part> parts;  // most demanding first, which is the order of placement
  std::vector<Alternative> alternatives;
  Level required = Level::kCluster;
  Level preferred = Level::kCluster;

  int64_t total_milli() const;
  int32_t pods() const;
};

struct Placement {
  std::vector<Room> rooms;
  std::vector<int32_t> roles;  // role of each room
  uint32_t alternative = 0;
};

class Placer {
 public:
  Placer(Cluster& cluster, Fragmentation& fragmentation) : cluster_(cluster), fragmentation_(fragmentation) {}

  // Takes the room for all pods, on the cluster's journal. Takes nothing when it returns nullopt. `loosest` may be
  // tighter than demand.required (a preference). Bit i of `allowed`: alternative i may be used.
  std::optional<Placement> Place(const Demand& demand, Level loosest, uint64_t allowed = ~uint64_t{0});
  // Uses only these nodes, held or not, still within demand.required.
  std::optional<Placement> PlaceOn(const Demand& demand, std::span<const NodeId> nodes,
                                   uint64_t allowed = ~uint64_t{0});
  // Uses only one domain, whatever the other domains offer.
  std::optional<Placement> PlaceIn(const Demand& demand, uint32_t alternative, Level level, Domain domain);

  // Adds room for one more block of a part to the placement, as close as possible to its first room. Takes nothing when
  // it returns false.
  bool Grow(const Demand& demand, size_t part, Placement* placement);

 private:
  bool Fill(ShapeId shape, int32_t role, Level level, Domain domain, int32_t pods, Placement* out);
  bool FillPart(const Demand::Part& part, ShapeId shape, Level level, Domain domain, int32_t pods, Placement* out);
  bool FillNodes(ShapeId shape, int32_t role, std::span<const NodeId> nodes, int32_t pods, Placement* out);
  bool FillPartOn(const Demand::Part& part, ShapeId shape, std::span<const NodeId> nodes, Placement* out);
  void PutOn(ShapeId shape, int32_t role, NodeId node, int32_t pods, Placement* out);
  NodeId BestNode(ShapeId shape, int32_t pods, uint32_t first, uint32_t last);
  bool DomainFits(const Demand& demand, const Demand::Alternative& alternative, Level level, Domain domain) const;

  // While one exists, the nodes that pods with Request::distinct are put on are hidden from the counters.
  class Distinct;

  Cluster& cluster_;
  Fragmentation& fragmentation_;
  std::vector<NodeId> hidden_;
};

}  // namespace vrun::sched::core
