// SPDX-License-Identifier: Apache-2.0
#include "control/gpus/gpu_room.h"

#include <array>
#include <optional>

#include "control/gpus/gpu_needs.h"
#include "sched/model/cluster.h"
#include "sched/model/fit.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

enum Reason : size_t {
  kBad,
  kMemory,
  kNotMig,
  kMigOnly,
  kProfile,
  kNoMps,
  kWhole,
  kOtherWay,
  kOthers,
  kFull,
  kReasons
};

// What is said of n GPUs.
std::string Text(size_t reason, int n) {
  const std::string is = n == 1 ? " is " : " are ", has = n == 1 ? " has " : " have ";
  switch (static_cast<Reason>(reason)) {
    case kBad: return is + "out of service";
    case kMemory: return has + "too little memory, or nobody knows how much";
    case kNotMig: return is + "not in MIG mode";
    case kMigOnly: return is + "in MIG mode and only given in instances";
    case kProfile: return " cannot be cut like that";
    case kNoMps: return " cannot be shared by MPS (see --share=time)";
    case kWhole: return is + "taken as a whole";
    case kOtherWay: return is + "shared in another way";
    case kOthers: return is + "shared by others, with whom this job shares none";
    case kFull:
    case kReasons: break;
  }
  return has + "too little left";
}

Reason ReasonOf(const core::Request& asked, const core::NodeRoom& node, int gpu) {
  const core::NodeSpec& spec = *node.spec;
  const std::optional<core::Request> fitted = core::OnNode(asked, spec);
  if ((spec.usable() >> gpu & 1) == 0) return kBad;
  if (!fitted) return kMemory;
  const core::Request& r = *fitted;
  const bool mig = spec.mig_gpus == 0 ? node.model != 0 : (spec.mig_gpus >> gpu & 1) != 0;
  if (r.mig != 0 && !mig) return kNotMig;
  if (r.mig == 0 && mig && spec.mig_gpus != 0) return kMigOnly;
  if (r.mig != 0 && core::mig::Size(node.model, r.mig) == 0) return kProfile;
  if ((spec.usable_for(r.kind()) >> gpu & 1) == 0) return kNoMps;
  const core::FreeRoom& free = *node.room;
  if (free.sharing[static_cast<size_t>(gpu)] == core::Sharing::kWhole) return kWhole;
  if (free.sharing[static_cast<size_t>(gpu)] != r.kind()) return kOtherWay;
  if (free.sharers[static_cast<size_t>(gpu)] != r.sharers) return kOthers;
  return kFull;
}

core::Request RequestOf(const Needs& needs) {
  core::Request request;
  SetGpus(needs, &request);
  return request;
}

}  // namespace

int32_t PodsByGpus(const Needs& needs, const core::NodeRoom& node, bool empty) {
  const core::Request request = RequestOf(needs);
  return empty ? core::Cluster::PodsWhenEmpty(request, *node.spec) : node.room->Count(request, node.model, *node.spec);
}

std::string WhyNoGpu(const Needs& needs, const std::vector<core::NodeRoom>& nodes, bool empty) {
  const core::Request request = RequestOf(needs);
  if (request.gpus > 0 && request.gpu_memory == 0) return "";
  std::array<int, kReasons> count{};
  int all = 0;
  for (const core::NodeRoom& node : nodes) {
    for (int i = 0; i < node.spec->gpus; ++i, ++all) {
      const Reason reason = ReasonOf(request, node, i);
      ++count[empty && reason > kNoMps ? kFull : reason];
    }
  }
  std::string text = "needs " + GpuText(needs);
  if (all == 0) return text + ", and there is no GPU";
  const char* separator = ": ";
  for (size_t reason = 0; reason < kReasons; ++reason) {
    const int n = count[reason];
    if (n == 0) continue;
    text += separator + std::to_string(n) + (separator[0] == ':' ? (n == 1 ? " GPU" : " GPUs") : "") + Text(reason, n);
    separator = ", ";
  }
  return text;
}

}  // namespace vrun::control
