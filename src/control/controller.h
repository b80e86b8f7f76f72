// SPDX-License-Identifier: Apache-2.0
// The controller: `vrund controller`. It owns the durable jobs, the queue and the node leases.
//
// One thread owns all state. Requests of all connections are queued. Each batch of queued requests runs in one
// transaction of the database. Replies, events and orders to nodes are sent only after its COMMIT, so an answer means
// that the change is on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/tier/content_tier.h"
#include "telemetry/settings.h"

namespace vrun::control {

struct ControllerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0 picks a port, which the next start uses again
  std::string state_directory;  // vrun.db and its log, `people`, `what-if` (results of replays), `address` and `http`
                                // (the HOST:PORT in use), `lock`, `place` (people/state_place.h)
  // A PostgreSQL database in place of vrun.db (store/postgres.h): while another controller has it, this one stands by.
  std::string database;
  // What an active controller and those that stand by have in common besides: `people`, `content-secret`. "":
  // state_directory.
  std::string shared_directory;
  std::string pki_directory;                // ca.pem, NAME.pem, NAME.key
  std::string authority;                    // directory of ca.pem and ca.key, for machines that join; "": they cannot
  int64_t certificate_seconds = 24 * 3600;  // how long the certificates of such machines are good
  std::string door;                         // socket for the users of this machine (door.h); "": none
  std::string name = "controller";          // subject name in the certificate
  std::vector<std::string> pools;           // pools that exist before any of their nodes has joined
  ContentTierOptions tier;                  // the pool's S3 store
  std::string scheduler_config;             // file with teams and weights (scheduler_config.h); read again on SIGHUP
  std::string http;                         // HOST:PORT of the HTTP API (api/api.h); "": none
  bool metrics_open = false;                // its /metrics needs no token
  std::string home_socket;                  // of the home that runs as this user (dashboard/log_relay.h); "": none
  telemetry::Options traces;                // of jobs, for a collector
  int ready_fd = -1;  // receives one line, "ok" or "error: text", when startup has succeeded or failed
  int64_t heartbeat_micros = 2'000'000;
  int64_t lease_micros = 15'000'000;  // a node that is silent for this long is called lost
};

// Runs until SIGTERM or SIGINT. Returns the process's exit status.
int ControllerMain(const ControllerOptions& options);

}  // namespace vrun::control
