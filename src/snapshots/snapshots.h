// SPDX-License-Identifier: Apache-2.0
// `vrund snapshots`: the snapshot store, on a host with a disk that is worth trusting. Independent of homes: what it
// keeps can be used when the home that made it is gone.
#pragma once

#include <cstdint>
#include <string>

namespace vrun::snapshots {

struct SnapshotsOptions {
  std::string listen;           // HOST:PORT; where homes reach it
  std::string state_directory;  // all content of all snapshots
  std::string pki_directory;    // ca.pem, snapshots.pem, snapshots.key
  // The pool's S3 store keeps the snapshots too (docs/decisions/0030); "": it does not.
  std::string s3_bucket;    // its name, for people: where it is the controller knows
  std::string controller;   // HOST:PORT; for that
  uint64_t disk_bytes = 0;  // so much of an owner's content stays here; 0: all that was here
  int ready_fd = -1;        // one line "ok" or "error: text" once it is known
};

// Runs until SIGTERM or SIGINT. Returns the process's exit status.
int SnapshotsMain(const SnapshotsOptions& options);

}  // namespace vrun::snapshots
