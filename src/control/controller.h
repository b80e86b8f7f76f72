// SPDX-License-Identifier: Apache-2.0
// The controller: `vrund controller`. Durable jobs, the queue, the nodes' leases.
//
// One thread owns all state. Requests of all connections are queued; those that have queued up are handled in one
// SQLite transaction, and only after its COMMIT do replies, events and orders to nodes go out: an answer means that it
// is on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/tier/content_tier.h"

namespace vrun::control {

struct ControllerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0 picks one, which the next start takes again
  std::string state_directory;         // vrun.db and its log, `address` (the HOST:PORT in use), `lock`
  std::string pki_directory;           // ca.pem, NAME.pem, NAME.key
  std::string name = "controller";     // of the certificate
  std::vector<std::string> pools;      // known before a node of theirs has ever joined
  ContentTierOptions tier;             // the pool's S3 store
  std::string scheduler_config;        // file of teams and weights (scheduler_config.h); read again on SIGHUP
  int ready_fd = -1;                   // one line "ok" or "error: text" once it is known
  int64_t heartbeat_micros = 2'000'000;
  int64_t lease_micros = 15'000'000;  // silence after which a node is called lost
};

// Runs until SIGTERM or SIGINT. Returns the process's exit status.
int ControllerMain(const ControllerOptions& options);

}  // namespace vrun::control
