// SPDX-License-Identifier: Apache-2.0
// Fragmentation: the GPU room of a node that stays idle while the likely next pods arrive (futures.h). A pod goes where
// this rises least.
//
// FGD (Weng et al., USENIX ATC 2023) asks what a single pod drawn from the arrivals could not use. That misses cpus
// running out before the GPUs, and which remainders of GPUs fit together. Simulating a whole sequence of pods covers
// both (docs/decisions/0024-fragmentation-looks-ahead.md).
//
// Pods without GPUs are not counted among the arrivals; they go where they take least from the others. Scores are
// cached per state of a node (type, room per GPU sorted, cpus, memory): a large cluster has few different states.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/cluster.h"
#include "sched/place/futures.h"

namespace vrun::sched::core {

class Fragmentation {
 public:
  explicit Fragmentation(const Cluster& cluster) : cluster_(cluster) {}

  // Records that `pods` of this kind were requested on GPUs of one of these types (empty: any). The expected arrivals
  // are updated at each doubling of the arrivals, and every kRefresh of them.
  void Arrived(const Request& request, const std::vector<std::string>& gpu_types, int64_t pods);

  struct Score {
    int64_t rise = 0;  // increase of F; negative when less stays idle
    int gpu = -1;      // of a slice: its GPU
    int start = -1;    // of a MIG instance: its first memory slice
  };
  // The pod must fit on the node.
  Score Rise(ShapeId shape, NodeId node);
  // F of the node in its present state: thousandths of GPUs, times Futures::kUnit.
  int64_t Waste(NodeId node);

 private:
  static constexpr int64_t kRefresh = 4096;
  static constexpr size_t kStates = 1 << 17;  // cached states; at this many the cache is cleared
  struct Known {
    int64_t rise = 0;
    uint32_t gpu = 0;      // state of the GPU chosen for a slice
    uint64_t sharers = 0;  // and who is on it
    int8_t start = -1;
    bool known = false;
  };
  struct Memo {
    Request request;
    std::vector<Known> by_state;
  };

  uint32_t StateOf(NodeId node);
  int64_t Waste(const Cluster::Node& node, const FreeRoom& free);
  Known Compute(const Request& request, const Cluster::Node& node);
  Known ComputeSlice(const Request& request, const Cluster::Node& node);
  void Refresh();

  const Cluster& cluster_;
  std::map<std::pair<Request, std::vector<std::string>>, int64_t> arrivals_;
  int64_t total_ = 0;
  int64_t since_refresh_ = 0;
  Futures futures_;
  std::unordered_map<std::string, uint32_t> states_;
  std::vector<std::pair<uint64_t, uint32_t>> state_of_;  // by node: its change counter at the time, and its state
  std::unordered_map<std::string, int64_t> waste_;       // by state, including states that were only considered
  std::vector<Memo> memo_;                               // by shape
};

}  // namespace vrun::sched::core
