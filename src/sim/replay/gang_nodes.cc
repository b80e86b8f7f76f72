// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/gang_nodes.h"

#include "base/result.h"

namespace vrun::sim {

GangNodes::GangNodes(int32_t nodes, int32_t gpus_per_node)
    : per_node_(gpus_per_node),
      free_gpus_(int64_t{nodes} * gpus_per_node),
      free_(nodes, gpus_per_node),
      with_free_(gpus_per_node + 1, 0) {
  VRUN_CHECK(nodes >= 1 && gpus_per_node >= 1);
  with_free_[per_node_] = nodes;
}

bool GangNodes::Fits(int64_t gpus) const {
  if (gpus > free_gpus_) return false;
  const int64_t whole = gpus / per_node_;
  const int64_t rest = gpus % per_node_;
  if (with_free_[per_node_] < whole) return false;
  if (rest == 0 || with_free_[per_node_] > whole) return true;
  for (int64_t free = rest; free < per_node_; ++free) {
    if (with_free_[free] > 0) return true;
  }
  return false;
}

Placement GangNodes::Find(int64_t gpus) const {
  Placement out;
  int64_t whole = gpus / per_node_;
  const int32_t rest = static_cast<int32_t>(gpus % per_node_);
  int32_t tightest = per_node_;
  if (rest > 0) {
    tightest = rest;
    while (tightest < per_node_ && with_free_[tightest] == 0) ++tightest;
  }
  bool rest_left = rest > 0;
  for (int32_t node = 0; node < nodes() && (whole > 0 || rest_left); ++node) {
    if (whole > 0 && free_[node] == per_node_) {
      out.push_back({node, per_node_});
      --whole;
    } else if (rest_left && free_[node] == tightest) {
      out.push_back({node, rest});
      rest_left = false;
    }
  }
  VRUN_CHECK(whole == 0 && !rest_left);
  return out;
}

void GangNodes::Take(std::span<const NodeShare> shares) {
  for (const NodeShare& share : shares) SetFree(share.node, free_[share.node] - share.gpus);
}

void GangNodes::Give(std::span<const NodeShare> shares) {
  for (const NodeShare& share : shares) SetFree(share.node, free_[share.node] + share.gpus);
}

void GangNodes::SetFree(int32_t node, int32_t free) {
  VRUN_CHECK(free >= 0 && free <= per_node_);
  --with_free_[free_[node]];
  ++with_free_[free];
  free_gpus_ += free - free_[node];
  free_[node] = free;
}

}  // namespace vrun::sim
