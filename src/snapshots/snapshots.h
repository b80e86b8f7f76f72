// SPDX-License-Identifier: Apache-2.0
// `vrund snapshots`: the snapshot store, to be run on a host with a reliable disk. Independent of homes: its snapshots
// can be used when the home that made them is gone.
#pragma once

#include <cstdint>
#include <string>

namespace vrun::snapshots {

struct SnapshotsOptions {
  std::string listen;           // HOST:PORT; where homes reach it
  std::string state_directory;  // all content of all snapshots
  std::string pki_directory;    // ca.pem, snapshots.pem, snapshots.key
  // The pool's S3 store also holds the snapshots (docs/decisions/0030); "": it does not.
  std::string s3_bucket;    // its name, for messages only: the controller knows where it is
  std::string controller;   // HOST:PORT; used with s3_bucket
  uint64_t disk_bytes = 0;  // how much of an owner's content stays here; 0: no limit
  int ready_fd = -1;        // gets one line "ok" or "error: text" when startup succeeded or failed
};

// Runs until SIGTERM or SIGINT. Returns the process's exit status.
int SnapshotsMain(const SnapshotsOptions& options);

}  // namespace vrun::snapshots
