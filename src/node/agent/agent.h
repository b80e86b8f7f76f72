// SPDX-License-Identifier: Apache-2.0
// The node agent: `vrund node`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "node/agent/isolation.h"
#include "telemetry/settings.h"

namespace vrun::node {

// What the node says about itself (v1::NodeFacts).
struct NodeFactsOptions {
  std::vector<std::string> labels, taints;  // NAME or NAME=VALUE
  std::string island, rack, block, zone;
  std::vector<std::string> gpu_groups;  // "0-3,6": GPUs that are close to each other; empty: by NUMA node
  std::string bad_gpus;                 // "2,5": GPUs that no job gets
  double price = 0;                     // of one GPU, relative; 0: the controller's
  uint32_t nics = 0;                    // RDMA interfaces that are handed out one by one
  // Tests only: describes GPUs that do not exist, as TYPE:GIGABYTES[:MIG MODEL[:N]]; the first N (all) are in MIG mode.
  std::string emulated_gpus;
};

struct AgentOptions {
  std::string controller;  // host:port
  std::string name;        // also the name in the certificate
  std::string pool = "local";
  std::string state_directory;            // store/, tasks/, kept/, views/, reports/, uid_ranges
  std::string pki_directory;              // ca.pem, NAME.pem, NAME.key
  std::string listen_host = "127.0.0.1";  // where homes reach this node
  int listen_port = 0;                    // 0: any free port
  std::string metrics;                    // HOST:PORT where Prometheus reads the node's figures; "": nowhere
  telemetry::Options traces;              // of jobs, for a collector
  int ready_fd = -1;                      // gets one line "ok" or "error: text" when startup succeeded or failed
  // The node's capacity; 0 or -1: use what the machine has.
  uint32_t milli_cpus = 0;
  uint64_t memory_bytes = 0;
  int gpus = -1;
  std::string gpu_type;
  // Where the GPUs' driver, and the /proc and /dev that it fills, are looked for.
  std::string driver_root = "/";
  std::string device_root = "/";
  std::string dcgm_job_directory;   // job ids for DCGM's exporter; "": none
  uint32_t gpu_interval_ms = 5000;  // of metering and health checks
  NodeFactsOptions facts;
  uint64_t cache_bytes = 0;             // limit for all homes together; 0: a quarter of the file system
  uint64_t cache_min_free_bytes = 0;    // 0: the store's default
  uint32_t cache_min_free_percent = 0;  // replaces cache_min_free_bytes when not 0
  uint64_t kept_bytes = 50ull << 30;    // limit for writes kept with --writes=keep, all homes together
  uint32_t kept_days = 14;              // how long kept writes stay
  IsolationOptions isolation;           // of jobs
  std::vector<std::string> fuse;        // for file system servers: node/views/view_features.h
};

// Runs until SIGTERM or SIGINT, which kill the tasks, or SIGHUP, which leaves them running for the next agent. Returns
// the process's exit status.
int AgentMain(const AgentOptions& options);

}  // namespace vrun::node
