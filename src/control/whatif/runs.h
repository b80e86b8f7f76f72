// SPDX-License-Identifier: Apache-2.0
// Replays of the cluster's history under other conditions: one at a time, by vrun-sim in the background; the last
// results are kept as files.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "proto/dashboard.pb.h"

namespace vrun::control {

// Tables of vrun-sim.
struct WhatIfInput {
  std::string trace, cluster, teams;  // what if
  std::string present_cluster, present_teams;
};

// Any thread.
class WhatIfRuns {
 public:
  static constexpr size_t kMostKept = 20;

  // `directory`: of its files, made if missing. `program`: path of vrun-sim; "": it is not installed, or there is no
  // directory.
  WhatIfRuns(std::string directory, std::string program);
  ~WhatIfRuns();  // ends the replay that runs

  bool installed() const { return !program_.empty(); }
  // Takes the only place for a replay. `run`: without id and state. kExists: another one runs; kUnsupported: vrun-sim
  // is not installed.
  Result<v1::WhatIf> Begin(v1::WhatIf run);
  // Whether somebody has ended it, or it has failed.
  bool IsOver(uint64_t id);
  // It goes on with what was collected. `run`: the facts of it that are known by now.
  void Run(const v1::WhatIf& run, WhatIfInput input);
  void Fail(uint64_t id, const std::string& why);

  Result<v1::WhatIf> Get(uint64_t id);
  v1::WhatIfList List();
  // Ends it if it runs, and forgets it. kNotFound.
  Status Remove(uint64_t id);

 private:
  void Load();
  void Execute(uint64_t id, const WhatIfInput& input);
  Result<std::string> Replay(uint64_t id, const WhatIfInput& input, int stop_fd);
  void Keep(const v1::WhatIf& run) VRUN_REQUIRES(mutex_);
  void End(v1::WhatIf* run, const std::string& problem) VRUN_REQUIRES(mutex_);
  std::string PathOf(uint64_t id) const;

  const std::string directory_;
  const std::string program_;
  Mutex mutex_;
  std::map<uint64_t, v1::WhatIf> runs_ VRUN_GUARDED_BY(mutex_);
  uint64_t active_ VRUN_GUARDED_BY(mutex_) = 0;  // the one that has not ended; 0: none
  UniqueFd stop_ VRUN_GUARDED_BY(mutex_);        // of the active one: written to end it
  uint64_t last_ VRUN_GUARDED_BY(mutex_) = 0;
  WorkQueue work_;  // last: its thread uses the others
};

// What the simulator's JSON says of all its replays, into `run`. kInternal: it is no such text.
Status AddOutcomes(const std::string& json, v1::WhatIf* run);

}  // namespace vrun::control
