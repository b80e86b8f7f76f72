// SPDX-License-Identifier: Apache-2.0
// The free GPUs of equal nodes, and where a gang goes on them. A gang of more GPUs than a node has takes whole nodes,
// and one more node for the remainder. A smaller gang stays on one node, the fullest that has room (best fit, then the
// lowest number). A value type: copy it to try something.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vrun::sim {

struct NodeShare {
  int32_t node = 0;
  int32_t gpus = 0;
  bool operator==(const NodeShare&) const = default;
};
using Placement = std::vector<NodeShare>;

class GangNodes {
 public:
  // Both at least 1. gpus_per_node is also the most that Fits asks of one node.
  GangNodes(int32_t nodes, int32_t gpus_per_node);

  int32_t nodes() const { return static_cast<int32_t>(free_.size()); }
  int32_t gpus_per_node() const { return per_node_; }
  int64_t capacity() const { return int64_t{nodes()} * per_node_; }
  int64_t free_gpus() const { return free_gpus_; }
  // Free GPUs on nodes that are partly used.
  int64_t fragmented_gpus() const {
    return free_gpus_ - int64_t{with_free_[static_cast<size_t>(per_node_)]} * per_node_;
  }
  int32_t FreeOn(int32_t node) const { return free_[node]; }

  // gpus >= 1. O(gpus_per_node).
  bool Fits(int64_t gpus) const;
  // REQUIRES Fits(gpus). Does not take anything.
  Placement Find(int64_t gpus) const;
  // Take REQUIRES that every share is free, Give that it is taken.
  void Take(std::span<const NodeShare> shares);
  void Give(std::span<const NodeShare> shares);
  // For views such as "free now and at a later time".
  void SetFree(int32_t node, int32_t free);

 private:
  int32_t per_node_;
  int64_t free_gpus_;
  std::vector<int32_t> free_;
  std::vector<int32_t> with_free_;  // number of nodes by free GPUs
};

}  // namespace vrun::sim
