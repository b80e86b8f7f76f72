// SPDX-License-Identifier: Apache-2.0
#include "control/gpus/gpu_needs.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/escape.h"
#include "base/hash/blake3.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

constexpr size_t kMostGpuTextBytes = 256;
constexpr uint32_t kWholeMilli = 1000;              // thousandths
constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // as sched/model/model.cc

Error Refused(const std::string& why) { return Error(Code::kInvalid, "submit: " + why); }

}  // namespace

GpuKind KindOf(const Needs& n) {
  if (!n.mig_profile.empty()) return GpuKind::kInstance;
  if (n.gpu_milli > 0) return GpuKind::kShare;
  if (n.gpus > 0) return GpuKind::kWhole;
  return n.gpu_memory_bytes > 0 ? GpuKind::kByMemory : GpuKind::kNone;
}

bool WantsGpus(const Needs& needs) { return KindOf(needs) != GpuKind::kNone; }

Status CheckGpuNeeds(const v1::Resources& r) {
  if ((r.gpus() > 0) + (r.gpu_milli() > 0) + !r.mig_profile().empty() > 1) {
    return Refused("whole GPUs, a share of one and a MIG instance exclude each other: ask for one of them");
  }
  if (r.gpus() > static_cast<uint32_t>(core::kMaxGpus)) {
    return Refused("a pod gets " + std::to_string(core::kMaxGpus) + " GPUs at most: take several nodes with -N");
  }
  if (r.gpu_milli() >= kWholeMilli) return Refused("a share of a GPU is less than one: ask for a whole GPU");
  if (r.gpu_burst_milli() > 0 && (r.gpu_milli() == 0 || r.gpu_burst_milli() <= r.gpu_milli() ||
                                  r.gpu_burst_milli() > kWholeMilli || r.gpu_sharing() == v1::GPU_TIME_SLICE)) {
    return Refused("only a share by MPS may use more than its least, and one GPU at most: write it as in 0.25..1");
  }
  if (!v1::GpuSharing_IsValid(r.gpu_sharing())) {
    return Error(Code::kUnsupported,
                 "submit: this controller does not know the way of sharing a GPU: write mps or time");
  }
  if (r.gpu_memory_bytes() > kMostBytes) return Refused("no GPU has so much memory: ask for less with --gpu-mem");
  if (!r.mig_profile().empty() && core::mig::FindProfile(r.mig_profile()) == 0) {
    return Refused("no GPU has the MIG profile " + Escape(r.mig_profile()) + ": known are " +
                   core::mig::ProfileNames(0));
  }
  return {};
}

uint64_t SharersOf(std::string_view name) {
  const Digest digest = Blake3(name);
  uint64_t number = 0;
  std::memcpy(&number, &digest, sizeof number);
  return number == 0 ? 1 : number;
}

void SetGpus(const Needs& needs, core::Request* request) {
  request->gpus = static_cast<int32_t>(std::min<int64_t>(needs.gpus, INT32_MAX));
  request->gpu_milli = static_cast<int32_t>(std::min(needs.gpu_milli, kWholeMilli));
  request->sharing = needs.gpu_sharing == v1::GPU_TIME_SLICE ? core::Sharing::kTimeSlice : core::Sharing::kMps;
  request->mig = core::mig::FindProfile(needs.mig_profile);
  request->gpu_memory = needs.gpu_memory_bytes;
  const GpuKind kind = KindOf(needs);
  if (kind == GpuKind::kShare || kind == GpuKind::kByMemory) request->sharers = needs.sharers;
}

v1::Resources GpusOfPod(const Needs& needs, const PodRow& pod) {
  v1::Resources out;
  out.set_gpu_type(needs.gpu_type);
  out.set_gpu_memory_bytes(static_cast<uint64_t>(needs.gpu_memory_bytes));
  if (!pod.mig_profile.empty()) {
    out.set_mig_profile(pod.mig_profile);
  } else if (pod.gpu_milli > 0) {
    out.set_gpu_milli(pod.gpu_milli);
    out.set_gpu_burst_milli(needs.gpu_burst_milli);
    out.set_gpu_sharing(needs.gpu_sharing == v1::GPU_TIME_SLICE ? v1::GPU_TIME_SLICE : v1::GPU_MPS);
  } else {
    out.set_gpus(static_cast<uint32_t>(std::popcount(pod.gpu_mask)));
  }
  return out;
}

uint32_t MilliOf(const PodRow& pod, const std::string& model) {
  if (pod.gpu_milli > 0) return pod.gpu_milli;
  const core::mig::Profile profile = core::mig::FindProfile(pod.mig_profile);
  if (profile == 0) return kWholeMilli;
  const core::mig::Model known = core::mig::FindModel(model);
  const int size = core::mig::Size(known, profile);
  return static_cast<uint32_t>(size == 0 ? core::mig::NominalMilli(profile)
                                         : size * core::kMilli / core::mig::Slices(known));
}

void CutGpus(google::protobuf::RepeatedPtrField<v1::Gpu>* gpus) {
  if (gpus->size() > core::kMaxGpus) gpus->DeleteSubrange(core::kMaxGpus, gpus->size() - core::kMaxGpus);
  for (v1::Gpu& gpu : *gpus) {
    for (std::string* text : {gpu.mutable_uuid(), gpu.mutable_product(), gpu.mutable_type(), gpu.mutable_pci_bus_id(),
                              gpu.mutable_problem()}) {
      if (text->size() > kMostGpuTextBytes) text->resize(kMostGpuTextBytes);
      *text = Escape(*text);
    }
  }
}

uint32_t WithProblems(const v1::NodeFacts& facts) {
  uint32_t mask = 0;
  for (int i = 0; i < std::min(facts.gpus_size(), core::kMaxGpus); ++i) {
    mask |= static_cast<uint32_t>(!facts.gpus(i).problem().empty()) << i;
  }
  return mask;
}

void SetGpus(const v1::NodeFacts& facts, core::NodeSpec* node) {
  node->bad_gpus = facts.bad_gpus();
  // A model that this version does not know is divided by nobody.
  if (core::mig::FindModel(facts.mig_model()) != 0) node->mig_model = facts.mig_model();
  if (facts.gpus_size() == 0) {
    if (!node->mig_model.empty()) node->mig_gpus = (1u << node->gpus) - 1;
    return;
  }
  for (int i = 0; i < std::min(facts.gpus_size(), node->gpus); ++i) {
    const v1::Gpu& gpu = facts.gpus(i);
    const auto memory = static_cast<int64_t>(std::min<uint64_t>(gpu.memory_bytes(), kMostBytes));
    node->gpu_memory = i == 0 ? memory : std::min(node->gpu_memory, memory);
    if (gpu.mig()) node->mig_gpus |= 1u << i;
    if (!gpu.mps()) node->no_mps |= 1u << i;
    if (gpu.mig() && node->mig_model.empty()) {
      node->mig_model = core::mig::ModelName(core::mig::ModelOfProduct(gpu.product()));
    }
  }
  // In MIG mode a GPU is given in instances only, and nobody knows these: it cannot be given at all.
  if (node->mig_model.empty()) node->bad_gpus |= node->mig_gpus;
  if (node->mig_gpus == 0) node->mig_model.clear();
}

std::string Decimal(int64_t milli) {
  std::string text = std::to_string(milli / kWholeMilli);
  if (milli % kWholeMilli == 0) return text;
  std::string part = std::to_string(milli % kWholeMilli + kWholeMilli).substr(1);
  part.erase(part.find_last_not_of('0') + 1);
  return text + "." + part;
}

std::string AmountOf(const Needs& needs) {
  switch (KindOf(needs)) {
    case GpuKind::kInstance: return needs.mig_profile;
    case GpuKind::kShare:
      return Decimal(needs.gpu_milli) + (needs.gpu_burst_milli > 0 ? ".." + Decimal(needs.gpu_burst_milli) : "");
    default: return std::to_string(std::max<int64_t>(needs.gpus, 1));
  }
}

std::string GpuText(const Needs& needs) {
  const std::string gpu = needs.gpu_type.empty() ? "gpu" : Escape(needs.gpu_type) + " gpu";
  std::string text;
  switch (KindOf(needs)) {
    case GpuKind::kNone: return "no gpu";
    case GpuKind::kWhole: text = std::to_string(needs.gpus) + " " + gpu + (needs.gpus == 1 ? "" : "s"); break;
    case GpuKind::kShare: text = Decimal(needs.gpu_milli) + " of a " + gpu; break;
    case GpuKind::kInstance: text = "a " + needs.mig_profile + (needs.gpu_type.empty() ? "" : " on a " + gpu); break;
    case GpuKind::kByMemory: break;
  }
  if (needs.gpu_memory_bytes == 0) return text;
  const std::string memory = std::to_string((needs.gpu_memory_bytes + core::kGiB - 1) / core::kGiB) + " GiB";
  return text.empty() ? memory + " of a " + gpu : text + " with " + memory;
}

}  // namespace vrun::control
