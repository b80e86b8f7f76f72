// SPDX-License-Identifier: Apache-2.0
// A node's figures for Prometheus (`vrund node --metrics`). Names begin with vrun_, units are base units. No label
// names a user, and none a job but those of pods with GPUs, of which a node has few.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/common.pb.h"

namespace vrun::node {

// Sums over all tenants. Counters are of this agent's time: a file system server that is started again begins at 0,
// they do not.
struct CacheFigures {
  uint64_t bytes = 0;
  uint64_t limit_bytes = 0;
  uint64_t hits = 0;    // units
  uint64_t misses = 0;  // units
  uint64_t corrupt_units = 0;
  uint64_t evictions = 0;
  uint64_t failed_writes = 0;
  uint64_t fetched_bytes = 0;  // from home, as sent over the wire
};

struct NodeFigures {
  std::string node, pool;
  bool connected = false;  // to the controller
  v1::Resources total;     // offered
  uint64_t milli_cpus_given = 0;
  uint64_t memory_given_bytes = 0;
  std::map<std::string, uint64_t> pods;  // by state: "waiting", "starting", "running", "ended"
  uint64_t file_system_servers = 0;
  uint64_t unsent_ends = 0;  // ends of pods that the controller has not acknowledged
  CacheFigures cache;
  std::string drain;                    // why the GPUs' health drains the node; "": it does not
  std::vector<std::string> gpu_faults;  // by GPU: what is wrong with it; "": nothing. Empty: not known
  std::vector<v1::GpuUsage> usages;     // the latest of each pod that runs
};

std::string MetricsText(const NodeFigures& figures);

}  // namespace vrun::node
