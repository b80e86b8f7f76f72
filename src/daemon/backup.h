// SPDX-License-Identifier: Apache-2.0
// `vrund backup` and `vrund restore`: the state of a controller in one file, and back. `vctl admin` runs them, because
// its static binary has no databases.
#pragma once

#include <string>

#include "control/backup/backup.h"

namespace vrun::daemon {

struct BackupOptions {
  control::StatePlace place;
  control::RestoreOptions restore;
  std::string file;
  bool json = false;
};

// Return the exit status; print the result to stdout, and errors and, on a terminal, progress to stderr.
int BackupMain(const BackupOptions& options);
int RestoreMain(const BackupOptions& options);

}  // namespace vrun::daemon
