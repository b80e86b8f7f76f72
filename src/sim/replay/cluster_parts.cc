// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/cluster_parts.h"

#include "base/escape.h"
#include "sim/replay/csv.h"

namespace vrun::sim {
namespace {

constexpr int64_t kMostPartNodes = 1'000'000;
constexpr int64_t kMostPartGpus = 1024;

bool IsLargeEnough(const TraceJob& job, const ClusterPart& part) {
  if (job.gpus > int64_t{part.nodes} * part.gpus) return false;
  if (job.pods == 0) return true;
  const int32_t of_one = job.gpus / job.pods;
  return of_one <= part.gpus && int64_t{part.gpus / of_one} * part.nodes >= job.pods;
}

}  // namespace

Result<ClusterParts> ReadClusterParts(const std::string& text, const std::string& name) {
  VRUN_ASSIGN(const Csv csv, Csv::Parse(text, name));
  VRUN_ASSIGN(const size_t pool, csv.Column("pool"));
  VRUN_ASSIGN(const size_t type, csv.Column("gpu_type"));
  VRUN_ASSIGN(const size_t nodes, csv.Column("nodes"));
  VRUN_ASSIGN(const size_t gpus, csv.Column("gpus"));
  ClusterParts parts;
  for (size_t row = 0; row < csv.rows(); ++row) {
    VRUN_ASSIGN(const int64_t count, csv.Integer(row, nodes, 0, kMostPartNodes));
    VRUN_ASSIGN(const int64_t each, csv.Integer(row, gpus, 0, kMostPartGpus));
    if (count == 0 || each == 0) continue;
    parts.push_back({std::string(csv.Field(row, pool)), std::string(csv.Field(row, type)), static_cast<int32_t>(count),
                     static_cast<int32_t>(each)});
  }
  if (parts.empty()) return Error(Code::kInvalid, Escape(name) + ": a cluster without GPUs");
  return parts;
}

int64_t NodesOf(const ClusterParts& parts) {
  int64_t sum = 0;
  for (const ClusterPart& part : parts) sum += part.nodes;
  return sum;
}

int64_t GpusOf(const ClusterParts& parts) {
  int64_t sum = 0;
  for (const ClusterPart& part : parts) sum += int64_t{part.nodes} * part.gpus;
  return sum;
}

int32_t PartFor(const JobTrace& trace, const TraceJob& job, const ClusterParts& parts) {
  int32_t best = -1;
  int64_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ClusterPart& part = parts[i];
    const bool wanted = (job.pool < 0 || trace.pools[static_cast<size_t>(job.pool)] == part.pool) &&
                        (job.gpu_type < 0 || trace.gpu_types[static_cast<size_t>(job.gpu_type)] == part.gpu_type);
    const int64_t size = int64_t{part.nodes} * part.gpus;
    if (!wanted || size <= most || !IsLargeEnough(job, part)) continue;
    best = static_cast<int32_t>(i);
    most = size;
  }
  return best;
}

JobTrace OnlyFitting(const JobTrace& trace, const ClusterParts& parts) {
  JobTrace out = trace;
  std::erase_if(out.jobs, [&](const TraceJob& job) { return PartFor(trace, job, parts) < 0; });
  return out;
}

}  // namespace vrun::sim
