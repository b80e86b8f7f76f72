// SPDX-License-Identifier: Apache-2.0
// Fragmentation as in FGD (Weng et al., USENIX ATC 2023): the room of a node that a pod drawn at random from the
// recent arrivals could not use. A pod goes where this rises least.
//
//   F(node) = sum over pod kinds m of p(m) * (all free GPU room if m does not fit, else what lies on GPUs with less
//             free than m needs of one GPU, or that are shared in another way; of GPUs cut into instances, what would
//             be left when as many instances of m were made as fit)
//
// Kinds without GPUs say nothing about GPU room and are not counted. Scores are remembered per state of a node (type,
// room per GPU sorted, cpus, memory): a large cluster has few different states.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/cluster.h"

namespace vrun::sched::core {

class Fragmentation {
 public:
  explicit Fragmentation(const Cluster& cluster) : cluster_(cluster) {}

  // `pods` of this kind were asked for. The mix that F is computed with follows at most every kRefresh arrivals.
  void Arrived(const Request& request, const std::string& gpu_type, int64_t pods);

  struct Score {
    int64_t rise = 0;  // of F, thousandths of GPUs in 1/4096; may be negative
    int gpu = -1;      // of a slice: on this GPU
    int start = -1;    // of a MIG instance: its first memory slice
  };
  // The pod must fit on the node.
  Score Rise(ShapeId shape, NodeId node);
  // F of the node as it is.
  int64_t Waste(NodeId node) const;

 private:
  static constexpr int64_t kRefresh = 256;
  static constexpr int64_t kUnit = 4096;
  static constexpr size_t kKinds = 64;        // the most popular ones
  static constexpr size_t kStates = 1 << 17;  // remembered; then it starts over
  struct Kind {
    Request request;
    std::string gpu_type;
    int64_t share;  // of kUnit
  };
  struct Known {
    int64_t rise = 0;
    uint32_t gpu = 0;  // state of the GPU chosen for a slice
    int8_t start = -1;
    bool known = false;
  };
  struct Memo {
    Request request;
    std::vector<Known> by_state;
  };
  using Mix = std::map<std::pair<Request, std::string>, int64_t>;

  uint32_t StateOf(NodeId node);
  int64_t Waste(const Cluster::Node& node) const;
  Known Compute(const Request& request, const Cluster::Node& node) const;
  Known ComputeSlice(const Request& request, const Cluster::Node& node) const;
  static uint32_t GpuState(const Cluster::Node& node, int gpu);
  void Refresh();
  void Forget();

  const Cluster& cluster_;
  Mix arrivals_;
  int64_t total_ = 0;
  int64_t since_refresh_ = 0;
  std::vector<Kind> kinds_;
  std::unordered_map<std::string, uint32_t> states_;
  std::vector<std::pair<uint64_t, uint32_t>> state_of_;  // by node: its change counter then, its state
  std::vector<Memo> memo_;                               // by shape
};

}  // namespace vrun::sched::core
