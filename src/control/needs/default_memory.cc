// SPDX-License-Identifier: Apache-2.0
#include "control/needs/default_memory.h"

#include <algorithm>

#include "control/gpus/gpu_needs.h"
#include "sched/model/mig.h"

namespace vrun::control {
namespace {

// A tenth is left for the node's daemons and the kernel's caches.
int64_t NineTenths(const NodeSize& node) { return node.memory_bytes / 10 * 9; }

double Part(double of, double all) { return all <= 0 ? 0 : std::min(of / all, 1.0); }

// In GPUs.
double GpusOf(const Needs& needs, const NodeSize& node) {
  namespace mig = sched::core::mig;
  constexpr double kWholeMilli = 1000;
  switch (KindOf(needs)) {
    case GpuKind::kWhole: return static_cast<double>(needs.gpus);
    case GpuKind::kShare: return needs.gpu_milli / kWholeMilli;
    case GpuKind::kInstance: return mig::NominalMilli(mig::FindProfile(needs.mig_profile)) / kWholeMilli;
    case GpuKind::kByMemory:
      return Part(static_cast<double>(needs.gpu_memory_bytes), static_cast<double>(node.gpu_memory_bytes));
    case GpuKind::kNone: break;
  }
  return 0;
}

bool Fits(const Needs& needs, const NodeSize& node) {
  if (needs.milli_cpus > node.milli_cpus || needs.gpus > node.gpus) return false;
  if (!WantsGpus(needs)) return true;
  return node.gpus > 0 && (needs.gpu_type.empty() || needs.gpu_type == node.gpu_type);
}

}  // namespace

NodeSize SizeOf(const NodeRow& node) {
  v1::Resources total;
  v1::NodeFacts facts;
  if (!total.ParseFromString(node.total) || !facts.ParseFromString(node.facts)) return {};
  NodeSize size{total.milli_cpus(), static_cast<int64_t>(total.memory_bytes()), total.gpus(), 0, total.gpu_type()};
  for (const v1::Gpu& gpu : facts.gpus()) {
    const auto memory = static_cast<int64_t>(gpu.memory_bytes());
    size.gpu_memory_bytes = size.gpu_memory_bytes == 0 ? memory : std::min(size.gpu_memory_bytes, memory);
  }
  return size;
}

int64_t DefaultMemory(const std::vector<NodeSize>& nodes, const Needs& needs) {
  int64_t least = 0;
  for (const NodeSize& node : nodes) {
    if (!Fits(needs, node)) continue;
    double part = Part(static_cast<double>(needs.milli_cpus), static_cast<double>(node.milli_cpus));
    if (node.gpus > 0) part = (part + Part(GpusOf(needs, node), static_cast<double>(node.gpus))) / 2;
    const auto bytes = static_cast<int64_t>(static_cast<double>(NineTenths(node)) * part);
    if (bytes > 0 && (least == 0 || bytes < least)) least = bytes;
  }
  return least;
}

uint64_t DefaultLimit(int64_t booked_bytes, const NodeSize& node) {
  constexpr int64_t kLeast = int64_t{2} << 30;
  return static_cast<uint64_t>(std::max(booked_bytes, std::min(kLeast, NineTenths(node))));
}

}  // namespace vrun::control
