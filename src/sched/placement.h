// SPDX-License-Identifier: Apache-2.0
// Where a gang goes. Tightest level first; in it the domain with the least room left over; inside, the children with
// most room until the remainder fits one, which is the tightest (so few domains are crossed); among nodes the one whose
// fragmentation rises least, then the tightest fit, then the lowest position; GPUs of as few groups as possible.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sched/cluster.h"
#include "sched/fragmentation.h"

namespace vrun::sched::core {

// A gang's needs in terms of shapes of a cluster.
struct Demand {
  struct Part {  // of one role
    Request request;
    int32_t pods = 0;
    int32_t role = 0;  // index in the job
  };
  struct Alternative {
    std::string gpu_type;         // "": any
    std::vector<ShapeId> shapes;  // by part
  };
  std::vector<Part> parts;  // most demanding first: it is placed first
  std::vector<Alternative> alternatives;
  Level required = Level::kCluster;
  Level preferred = Level::kCluster;

  int64_t total_milli() const;
  int32_t pods() const;
};

struct Placement {
  std::vector<Room> rooms;
  std::vector<int32_t> roles;  // of each room
  uint32_t alternative = 0;
};

class Placer {
 public:
  Placer(Cluster& cluster, Fragmentation& fragmentation) : cluster_(cluster), fragmentation_(fragmentation) {}

  // Takes the room for all pods, on the cluster's journal; nothing is taken when it returns nullopt. `loosest` may be
  // tighter than demand.required: a wish.
  // Bit i of `allowed`: alternative i may be used.
  std::optional<Placement> Place(const Demand& demand, Level loosest, uint64_t allowed = ~uint64_t{0});
  // On these nodes only, held or not; still within demand.required.
  std::optional<Placement> PlaceOn(const Demand& demand, std::span<const NodeId> nodes,
                                   uint64_t allowed = ~uint64_t{0});
  // Inside one domain, whatever the other domains offer.
  std::optional<Placement> PlaceIn(const Demand& demand, uint32_t alternative, Level level, Domain domain);

  // Whether the counters of the whole cluster leave it possible: a necessary condition, one comparison a part.
  bool Possible(const Demand& demand) const;

 private:
  bool Fill(ShapeId shape, int32_t role, Level level, Domain domain, int32_t pods, Placement* out);
  void PutOn(ShapeId shape, int32_t role, NodeId node, int32_t pods, Placement* out);
  NodeId BestNode(ShapeId shape, int32_t pods, uint32_t first, uint32_t last);
  bool DomainFits(const Demand& demand, const Demand::Alternative& alternative, Level level, Domain domain) const;

  Cluster& cluster_;
  Fragmentation& fragmentation_;
};

}  // namespace vrun::sched::core
