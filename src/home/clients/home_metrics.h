// SPDX-License-Identifier: Apache-2.0
// A home's figures for Prometheus (setting home_metrics). No label names a path or a job.
#pragma once

#include <cstdint>
#include <string>

#include "home/root/root_tree.h"

namespace vrun::home {

struct HomeFigures {
  bool connected = false;  // to the controller, by the last call
  uint64_t runs = 0;       // jobs of this home that have not ended
  uint64_t entries = 0;    // of the root that are known
  RootTree::Facts root;
  uint64_t served_bytes = 0;        // content sent to nodes, uncompressed or not, as sent
  uint64_t metadata_requests = 0;   // of nodes
  int64_t certificate_ends_us = 0;  // since 1970; 0: there is none
};

std::string MetricsText(const HomeFigures& figures);

}  // namespace vrun::home
