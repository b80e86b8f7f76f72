// SPDX-License-Identifier: Apache-2.0
// `vrund snapshots`: the snapshot store, on a host with a disk that is worth trusting. Independent of homes: what it
// keeps can be used when the home that made it is gone.
#pragma once

#include <string>

namespace vrun::snapshots {

struct SnapshotsOptions {
  std::string listen;           // HOST:PORT; where homes reach it
  std::string state_directory;  // all content of all snapshots
  std::string pki_directory;    // ca.pem, snapshots.pem, snapshots.key
  int ready_fd = -1;            // one line "ok" or "error: text" once it is known
};

// Runs until SIGTERM or SIGINT. Returns the process's exit status.
int SnapshotsMain(const SnapshotsOptions& options);

}  // namespace vrun::snapshots
