// SPDX-License-Identifier: Apache-2.0
#include "cli/request/gang_options.h"

#include <algorithm>
#include <array>

#include "base/escape.h"
#include "cli/base/values.h"
#include "cli/request/gpu_options.h"

namespace vrun::cli {
namespace {

constexpr uint64_t kMostNodes = 100'000;
constexpr uint64_t kMostTasks = 1'000'000;
constexpr uint64_t kMostTasksPerNode = 4096;

// Start the processes of other nodes themselves.
constexpr std::array<std::string_view, 5> kLaunchers = {"mpirun", "mpiexec", "orterun", "prterun", "horovodrun"};

Result<uint32_t> ParseCount(std::string_view text, uint64_t most, const char* what) {
  const auto n = ParseNumber(text, most);
  if (n && *n > 0) return static_cast<uint32_t>(*n);
  return Error(Code::kInvalid, Escape(text) + ": not a number of " + what + " from 1 to " + std::to_string(most));
}

Error Contradiction(const std::string& text) { return Error(Code::kInvalid, text); }

std::string Text(const char* option, uint32_t n) { return std::string(option) + " " + std::to_string(n); }

// Each pod gets one share or instance, whatever its number of tasks.
Status CheckParts(const GangOptions& options, const v1::Gang& gang, const v1::Resources& resources) {
  const GpuKind kind = KindOf(resources);
  if (kind != GpuKind::kShare && kind != GpuKind::kInstance) return {};
  const std::string option = options.gpus_option + ": ";
  const char* what = kind == GpuKind::kShare ? "a share of a GPU" : "a MIG instance";
  if (options.gpus == GangOptions::Gpus::kTask && gang.ranks_per_pod() > 1) {
    return Contradiction(option + "the " + std::to_string(gang.ranks_per_pod()) + " tasks of a node get " + what +
                         " together: write --gpus-per-node " + AmountText(resources));
  }
  if (options.gpus == GangOptions::Gpus::kJob && gang.pods() > 1) {
    return Contradiction(option + what + " is on one node, and the job has " + std::to_string(gang.pods()) +
                         ": write --gpus-per-node " + AmountText(resources));
  }
  return {};
}

}  // namespace

Status ParseNodes(std::string_view text, GangOptions* out) {
  const size_t split = text.find_first_of(":-");
  VRUN_ASSIGN(uint32_t first, ParseCount(text.substr(0, split), kMostNodes, "nodes"));
  uint32_t last = first;
  if (split != text.npos) {
    VRUN_ASSIGN(last, ParseCount(text.substr(split + 1), kMostNodes, "nodes"));
    if (last < first) {
      return Error(Code::kInvalid, Escape(text) + ": the second number is the larger one: write " +
                                       std::to_string(last) + ":" + std::to_string(first));
    }
  }
  out->nodes = last;
  out->least_nodes = first < last ? first : 0;
  return {};
}

Result<uint32_t> ParseTasks(std::string_view text) { return ParseCount(text, kMostTasks, "tasks"); }

Result<int32_t> ParseInputRank(std::string_view text) {
  if (text == "all") return -1;
  if (text == "none") return -2;
  if (const auto n = ParseNumber(text, kMostTasks)) return static_cast<int32_t>(*n);
  return Error(Code::kInvalid, Escape(text) + ": write all, none or the number of a rank; redirect a file with < FILE");
}

Result<std::optional<v1::Gang>> ShapeOf(const GangOptions& options, std::string_view program) {
  const uint32_t tasks = options.tasks;
  uint32_t nodes = options.nodes;
  uint32_t each = options.tasks_per_node;
  if (tasks > 0) {
    if (options.least_nodes > 0) {
      return Contradiction(Text("-n", tasks) + ": the number of nodes may change: write --ntasks-per-node");
    }
    if (nodes > 0 && each > 0 && nodes * each != tasks) {
      return Contradiction(Text("-n", tasks) + ": " + Text("-N", nodes) + " with " + Text("--ntasks-per-node", each) +
                           " are " + std::to_string(nodes * each) + " tasks: leave one of them out");
    }
    if (nodes == 0) nodes = each == 0 ? 1 : tasks / each;
    if (each == 0) each = tasks / nodes;
    if (each == 0 || nodes == 0 || nodes * each != tasks) {
      return Contradiction(Text("-n", tasks) + ": not the same number of tasks on every node: write a multiple of " +
                           std::to_string(options.tasks_per_node > 0 ? options.tasks_per_node : nodes));
    }
  }
  nodes = std::max(1u, nodes);
  each = std::max(1u, each);
  if (each > kMostTasksPerNode) {
    return Contradiction(std::to_string(each) + " tasks on a node: at most " + std::to_string(kMostTasksPerNode));
  }
  if (nodes == 1 && each == 1) return std::optional<v1::Gang>();
  if (options.input_rank > 0 && static_cast<uint64_t>(options.input_rank) >= uint64_t{nodes} * each) {
    return Contradiction("--input=" + std::to_string(options.input_rank) + ": there are only " +
                         std::to_string(nodes * each) + " ranks, numbered from 0");
  }
  v1::Gang gang;
  gang.set_pods(nodes);
  gang.set_min_pods(options.least_nodes);
  gang.set_ranks_per_pod(each);
  gang.set_no_kill(options.no_kill);
  gang.set_wait_s(options.wait_s);
  gang.set_no_slurm_environment(options.no_slurm_environment);
  const std::string_view name = program.substr(program.rfind('/') + 1);
  gang.set_launcher(
      options.launcher.value_or(std::find(kLaunchers.begin(), kLaunchers.end(), name) != kLaunchers.end()));
  return std::optional<v1::Gang>(gang);
}

Status ApplyShape(const GangOptions& options, std::string_view program, v1::RunSpec* spec) {
  VRUN_ASSIGN(std::optional<v1::Gang> gang, ShapeOf(options, program));
  if (!gang) return {};
  v1::Resources* resources = spec->mutable_resources();
  const uint32_t each = gang->ranks_per_pod();
  // Cores are given for one task.
  resources->set_milli_cpus((resources->milli_cpus() == 0 ? 1000 : resources->milli_cpus()) * each);
  VRUN_TRY(CheckParts(options, *gang, *resources));
  const uint32_t gpus = resources->gpus();
  if (options.gpus == GangOptions::Gpus::kTask) resources->set_gpus(gpus * each);
  if (options.gpus == GangOptions::Gpus::kJob && gpus > 0 && gang->pods() > 1) {
    if (gang->min_pods() > 0) {
      return Contradiction(Text("-G", gpus) + ": the number of nodes may change: write --gpus-per-node");
    }
    if (gpus % gang->pods() != 0) {
      return Contradiction(Text("-G", gpus) + ": for the whole job, which has " + std::to_string(gang->pods()) +
                           " nodes: write a multiple of it, or --gpus-per-node");
    }
    resources->set_gpus(gpus / gang->pods());
  }
  *spec->mutable_gang() = *std::move(gang);
  return {};
}

}  // namespace vrun::cli
