// SPDX-License-Identifier: Apache-2.0
// What a run needs of the daemon around it. Owned by home.cc, which outlives all runs.
#pragma once

#include <string>

#include "base/event_loop.h"

namespace vrun::home {

class ContentFiles;
class ControllerClient;
class FrozenRoots;
class LiveWrites;
class LogSpool;
class NodeLinks;
class RootTree;
class SnapshotTable;
class Snapshots;
class Traces;
class TreeBoard;

struct Services {
  EventLoop* loop = nullptr;
  ControllerClient* controller = nullptr;
  NodeLinks* nodes = nullptr;
  LogSpool* spool = nullptr;
  RootTree* tree = nullptr;
  SnapshotTable* trees = nullptr;
  Traces* traces = nullptr;
  Snapshots* snapshots = nullptr;
  FrozenRoots* frozen = nullptr;
  const ContentFiles* files = nullptr;  // what the root has, and what it had where that is kept
  LiveWrites* live_writes = nullptr;
  TreeBoard* tree_board = nullptr;
  std::string home_id;
  std::string root;             // directory of this machine that is "/" of the jobs
  std::string state_directory;  // runs/JOB: what has to be known of a run after a restart
  std::string default_pool;
  bool default_live = false;    // a run that says neither gets a live view
  bool conflicts_fail = false;  // a job whose writes conflict with home's has failed
};

}  // namespace vrun::home
