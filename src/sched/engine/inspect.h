// SPDX-License-Identifier: Apache-2.0
// Read access to the core's state, for display and for checks after a restart. Returns copies. Nothing here changes a
// decision.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sched/core.h"
#include "sched/model/cluster.h"

namespace vrun::sched::core {

enum class JobPhase : uint8_t {
  kWaiting,   // pending, or not allowed to begin yet
  kClaiming,  // its room is being freed
  kRunning,
  kStopping,  // told to leave
};
struct JobView {
  JobPhase phase = JobPhase::kWaiting;
  Micros started = 0;     // begin of the present run
  Micros expected = 0;    // remaining run time, as last estimated
  bool learned = false;   // from past runs of such jobs, not from the owner's estimate or the time it has run
  Micros hold_start = 0;  // when held nodes are expected to be free; 0: it has no hold
  std::vector<std::string> hold_nodes;
  int32_t preemptions = 0;
  size_t pods = 0;                // that have room, without those:
  std::vector<PodPlace> leaving;  // removed by a Resize, but they still have their room
};
// nullopt when the job is unknown or gone.
std::optional<JobView> InspectJob(const State& state, JobId job);

// Waiting jobs, most urgent first: in the order of the last pass, then those that came since.
std::vector<JobId> Waiting(const State& state);

struct NodeRoom {
  const NodeSpec* spec = nullptr;  // valid until the next Step
  bool up = false;
  bool held = false;  // for a gang
  int32_t free_gpus = 0;
  int64_t free_milli_cpus = 0;
  int64_t free_memory_bytes = 0;
  const FreeRoom* room = nullptr;  // valid as long as spec
  mig::Model model = 0;
};
std::vector<NodeRoom> Nodes(const State& state);
// Running jobs with room on the node, each once.
std::vector<JobId> RunningOn(const State& state, const std::string& node);

struct TeamUse {
  std::string name;
  int64_t used = 0, waiting = 0, fair = 0;               // thousandths of GPUs
  std::vector<std::pair<std::string, int64_t>> by_type;  // used, in order of type names
};
std::vector<TeamUse> TeamsInUse(const State& state);

}  // namespace vrun::sched::core
