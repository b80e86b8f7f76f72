// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/pods.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::sim {
namespace {

constexpr int64_t kMostMilli = int64_t{1} << 40;
constexpr int32_t kMostModels = 64;

Result<uint64_t> ReadSpec(const Csv& csv, size_t row, size_t column, ModelNames* models) {
  uint64_t out = 0;
  std::string_view rest = csv.Field(row, column);
  while (!rest.empty()) {
    const size_t bar = std::min(rest.find('|'), rest.size());
    if (bar == 0 || bar + 1 == rest.size()) return csv.At(row, "gpu_spec: expected names with '|' between");
    const int32_t model = models->IndexOf(rest.substr(0, bar));
    if (model < 0) return csv.At(row, "more than 64 GPU models");
    out |= uint64_t{1} << model;
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  return out;
}

}  // namespace

int32_t ModelNames::IndexOf(std::string_view name) {
  auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int32_t>(found - names.begin());
  if (names.size() == kMostModels) return -1;
  names.emplace_back(name);
  return static_cast<int32_t>(names.size()) - 1;
}

bool IsPodTable(const Csv& csv) { return csv.HasAll({"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}); }

Result<std::vector<Pod>> ReadPods(const Csv& csv, ModelNames* models) {
  VRUN_ASSIGN(size_t cpu, csv.Column("cpu_milli"));
  VRUN_ASSIGN(size_t memory, csv.Column("memory_mib"));
  VRUN_ASSIGN(size_t gpus, csv.Column("num_gpu"));
  VRUN_ASSIGN(size_t milli, csv.Column("gpu_milli"));
  const std::optional<size_t> spec = csv.Find("gpu_spec");
  std::vector<Pod> out;
  for (size_t row = 0; row < csv.rows(); ++row) {
    Pod pod;
    VRUN_ASSIGN(pod.cpu_milli, csv.Integer(row, cpu, 0, kMostMilli));
    VRUN_ASSIGN(pod.memory_mib, csv.Integer(row, memory, 0, kMostMilli));
    VRUN_ASSIGN(int64_t count, csv.Integer(row, gpus, 0, kMostGpusPerNode));
    VRUN_ASSIGN(int64_t share, csv.Integer(row, milli, 0, kMilliPerGpu));
    if (count == 0 ? share != 0 : share == 0) return csv.At(row, "num_gpu and gpu_milli: both are 0 or none is");
    if (count > 1 && share != kMilliPerGpu) return csv.At(row, "gpu_milli: several GPUs are whole ones: write 1000");
    pod.gpus = static_cast<int32_t>(count);
    pod.gpu_milli = static_cast<int32_t>(share);
    if (spec) {
      VRUN_ASSIGN(pod.models, ReadSpec(csv, row, *spec, models));
    }
    out.push_back(pod);
  }
  if (out.empty()) return Error(Code::kInvalid, Escape(csv.name()) + ":1: a table without pods");
  return out;
}

Result<std::vector<PodNode>> ReadPodNodes(const Csv& csv, ModelNames* models) {
  VRUN_ASSIGN(size_t name, csv.Column("sn"));
  VRUN_ASSIGN(size_t cpu, csv.Column("cpu_milli"));
  VRUN_ASSIGN(size_t memory, csv.Column("memory_mib"));
  VRUN_ASSIGN(size_t gpus, csv.Column("gpu"));
  VRUN_ASSIGN(size_t model, csv.Column("model"));
  std::vector<PodNode> out;
  for (size_t row = 0; row < csv.rows(); ++row) {
    PodNode node;
    node.name = csv.Field(row, name);
    VRUN_ASSIGN(node.cpu_milli, csv.Integer(row, cpu, 0, kMostMilli));
    VRUN_ASSIGN(node.memory_mib, csv.Integer(row, memory, 0, kMostMilli));
    VRUN_ASSIGN(int64_t count, csv.Integer(row, gpus, 0, kMostGpusPerNode));
    node.gpus = static_cast<int32_t>(count);
    if (count > 0) {
      if (csv.Field(row, model).empty()) return csv.At(row, "model: a node with GPUs needs one");
      node.model = models->IndexOf(csv.Field(row, model));
      if (node.model < 0) return csv.At(row, "more than 64 GPU models");
    }
    out.push_back(std::move(node));
  }
  if (out.empty()) return Error(Code::kInvalid, Escape(csv.name()) + ":1: a table without nodes");
  return out;
}

}  // namespace vrun::sim
