// SPDX-License-Identifier: Apache-2.0
#include "sched/model/model.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::sched::core {

namespace {
Status Invalid(const std::string& what, const std::string& why) {
  return Error(Code::kInvalid, what + ": " + why + ": correct the request");
}
constexpr int32_t kMostNics = 1024;
constexpr int64_t kMost = int64_t{1} << 50;  // of cpus and bytes: keeps sums far from overflow
}  // namespace

Status Validate(const JobSpec& job) {
  const std::string what = "job " + std::to_string(job.id);
  if (job.roles.empty()) return Invalid(what, "it has no role");
  int64_t pods = 0;
  int elastic = 0;
  for (const Role& r : job.roles) {
    const std::string role = what + ", role " + Escape(r.name);
    if (r.pods < 1) return Invalid(role, "it needs at least one pod");
    pods += r.pods;
    if (r.min_pods < 0 || r.min_pods > r.pods) return Invalid(role, "it has from min_pods to pods pods");
    if (r.min_pods > 0 && ++elastic > 1) return Invalid(what, "one role at most is elastic");
    if (r.segment < 0 || r.pods % r.block() != 0 || r.least() % r.block() != 0) {
      return Invalid(role, "pods and min_pods are whole blocks of " + std::to_string(r.segment));
    }
    if ((r.segment > 0 || r.spread) && r.segment_level > job.required) {
      return Invalid(role, "its blocks may lie farther apart than the gang may");
    }
    if (r.request.gpus < 0 || r.request.gpus > kMaxGpus) {
      return Invalid(role, "a pod takes 0 to " + std::to_string(kMaxGpus) + " GPUs");
    }
    if (r.request.gpu_milli < 0 || r.request.gpu_milli >= kMilli) {
      return Invalid(role, "a slice is 1 to 999 thousandths of a GPU");
    }
    if ((r.request.gpus > 0) + (r.request.gpu_milli > 0) + (r.request.mig != 0) > 1) {
      return Invalid(role, "whole GPUs, a share of one and a MIG instance exclude each other");
    }
    if (r.request.gpu_milli > 0 && r.request.sharing != Sharing::kMps && r.request.sharing != Sharing::kTimeSlice) {
      return Invalid(role, "a share of a GPU is by MPS or by time slices");
    }
    if (r.request.mig != 0 && mig::ProfileName(r.request.mig).empty()) {
      return Invalid(role, "there is no such MIG profile");
    }
    if (std::min(r.request.milli_cpus, r.request.memory_bytes) < 0 ||
        std::max(r.request.milli_cpus, r.request.memory_bytes) > kMost) {
      return Invalid(role, "cpus and memory are out of range");
    }
    if (r.request.gpu_memory < 0 || r.request.gpu_memory > kMost)
      return Invalid(role, "the memory of a GPU is out of range");
    if (r.request.sharers != 0 && r.request.gpu_milli == 0 && !r.request.open()) {
      return Invalid(role, "only a share of a GPU has others beside it");
    }
    if (r.request.nics < 0 || r.request.nics > kMostNics) return Invalid(role, "a pod has 0 to 1024 NICs");
  }
  if (pods > 1'000'000) return Invalid(what, "a gang has at most a million pods");
  if (job.gpu_types.size() > 64) return Invalid(what, "it names more than 64 GPU types");
  for (const auto* list : {&job.after, &job.after_ok}) {
    if (std::find(list->begin(), list->end(), job.id) != list->end()) return Invalid(what, "it depends on itself");
  }
  if (std::min({job.deadline, job.estimate, job.limit, job.notice}) < 0) return Invalid(what, "a time is negative");
  if (job.hard_deadline && job.deadline == 0) return Invalid(what, "its hard deadline is not given");
  for (size_t i = 0; i < job.deadline_steps.size(); ++i) {
    const DeadlineStep& s = job.deadline_steps[i];
    const bool later = i == 0 || s.at > job.deadline_steps[i - 1].at;
    if (s.at <= 0 || s.value < 0 || s.value > 1000 || !later) {
      return Invalid(what, "deadlines are in ascending order, worth 0 to 1000 thousandths");
    }
  }
  return {};
}

Status Validate(const NodeSpec& node) {
  const std::string what = "node " + Escape(node.name);
  if (node.name.empty()) return Invalid(what, "it has no name");
  if (node.gpus < 0 || node.gpus > kMaxGpus) return Invalid(what, "it has 0 to " + std::to_string(kMaxGpus) + " GPUs");
  if (std::min(node.milli_cpus, node.memory_bytes) < 0 || std::max(node.milli_cpus, node.memory_bytes) > kMost) {
    return Invalid(what, "cpus and memory are out of range");
  }
  if (node.nics < 0 || node.nics > kMostNics) return Invalid(what, "it has 0 to 1024 NICs");
  if (node.gpu_memory < 0 || node.gpu_memory > kMost) return Invalid(what, "the memory of its GPUs is out of range");
  if (!node.mig_model.empty() && mig::FindModel(node.mig_model) == 0) {
    return Invalid(what, "how a " + Escape(node.mig_model) + " can be cut into instances is not known");
  }
  return {};
}

Status Validate(const Maintenance& window) {
  const std::string what = "maintenance " + Escape(window.name);
  if (window.name.empty()) return Invalid(what, "it has no name");
  if (window.nodes.empty()) return Invalid(what, "it names no node");
  if (window.from < 0 || window.until <= window.from) return Invalid(what, "it has to end after it begins");
  return {};
}

}  // namespace vrun::sched::core
