// SPDX-License-Identifier: Apache-2.0
// Options of jobs of several processes: nodes, tasks, launchers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// As given; 0: not given.
struct GangOptions {
  uint32_t nodes = 0;
  uint32_t least_nodes = 0;  // not 0: it may run with fewer than `nodes`
  uint32_t tasks = 0;
  uint32_t tasks_per_node = 0;
  bool label = false;
  bool no_kill = false;
  uint32_t wait_s = 0;
  bool no_slurm_environment = false;
  std::optional<bool> launcher;  // nullopt: known from the command's name
  int32_t input_rank = 0;        // -1: all, -2: none
  // What a number of GPUs is meant for.
  enum class Gpus { kJob, kNode, kTask };
  Gpus gpus = Gpus::kJob;
  // The option that asked for GPUs, as written, and its line in a script ("": the command line).
  std::string gpus_option, gpus_where;
};

// "4", "2:8" and Slurm's "2-8". kInvalid: no such number.
Status ParseNodes(std::string_view text, GangOptions* out);
Result<uint32_t> ParseTasks(std::string_view text);
// "all", "none" or a rank.
Result<int32_t> ParseInputRank(std::string_view text);

// The job's shape; nullopt: one process. `program`: the first word of the command. kInvalid: the numbers contradict
// each other.
Result<std::optional<v1::Gang>> ShapeOf(const GangOptions& options, std::string_view program);

// Sets the shape, and the resources of one pod from those that were given for the job, a node or a task.
Status ApplyShape(const GangOptions& options, std::string_view program, v1::RunSpec* spec);

}  // namespace vrun::cli
