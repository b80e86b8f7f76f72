// SPDX-License-Identifier: Apache-2.0
#include "cli/request/gpu_options.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/escape.h"
#include "cli/base/table.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

constexpr uint32_t kWhole = 1000;  // thousandths
constexpr uint32_t kLeast = 10;    // MPS limits processors in hundredths
constexpr std::string_view kForm =
    "write [TYPE:]N as in 2 or h100:2, a share as in 0.25 or 0.25..1, or a MIG instance as in 1g.10gb";

Error Bad(std::string_view text, const std::string& why) { return Error(Code::kInvalid, Escape(text) + ": " + why); }

struct GpuAsk {
  std::string type;
  uint32_t gpus = 0;
  uint32_t milli = 0;
  uint32_t burst = 0;
  std::string profile;
  bool SameAmount(const GpuAsk& o) const {
    return gpus == o.gpus && milli == o.milli && burst == o.burst && profile == o.profile;
  }
};

bool AllDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "1g.10gb", whether or not any GPU can be cut like that: the controller knows.
bool LooksLikeProfile(std::string_view text) {
  const size_t g = text.find("g.");
  return g != text.npos && AllDigits(text.substr(0, g)) && text.size() > g + 4 && text.ends_with("gb") &&
         AllDigits(text.substr(g + 2, text.size() - g - 4));
}

bool LooksLikeAmount(std::string_view text) {
  return LooksLikeProfile(text) || (!text.empty() && text.find_first_not_of("0123456789.") == text.npos);
}

// "0.25", "1", ".5" as thousandths.
std::optional<uint32_t> Thousandths(std::string_view text) {
  const size_t dot = text.find('.');
  const std::string_view whole = text.substr(0, dot);
  std::string part(dot == text.npos ? std::string_view() : text.substr(dot + 1));
  if ((!whole.empty() && !AllDigits(whole)) || whole.size() > 6 || part.size() > 3) return std::nullopt;
  if (dot == text.npos ? whole.empty() : !AllDigits(part)) return std::nullopt;
  part.resize(3, '0');
  const auto n = ParseNumber(whole.empty() ? "0" : whole, 999'999), fraction = ParseNumber(part, 999);
  if (!n || !fraction) return std::nullopt;
  return static_cast<uint32_t>(*n * kWhole + *fraction);
}

std::string Decimal(uint32_t milli) {
  std::string text = std::to_string(milli / kWhole);
  if (milli % kWhole == 0) return text;
  std::string part = std::to_string(milli % kWhole + kWhole).substr(1);
  part.erase(part.find_last_not_of('0') + 1);
  return text + "." + part;
}

Status ParseShareOfOne(std::string_view amount, GpuAsk* out) {
  const size_t dots = amount.find("..");
  const auto least = Thousandths(amount.substr(0, dots));
  if (!least) return Bad(amount, "not a share of a GPU: write it as in 0.25, or 0.25..1");
  if (*least > kWhole || (*least == kWhole && dots != amount.npos)) {
    return Bad(amount, *least == kWhole ? "one GPU is whole already: write 1"
                                        : "a share is less than one GPU: write a whole number, or a share as in 0.5");
  }
  if (*least == kWhole) {  // "1.0"
    out->gpus = 1;
    return {};
  }
  if (*least < kLeast) return Bad(amount, "too small: the smallest share is 0.01");
  out->milli = *least;
  if (dots == amount.npos) return {};
  const auto most = Thousandths(amount.substr(dots + 2));
  if (!most || *most > kWhole || *most <= *least) {
    return Bad(amount, "the second number is what it may use at most: larger than the first, and 1 at most");
  }
  out->burst = *most;
  return {};
}

// One alternative.
Result<GpuAsk> ParseOne(std::string_view text) {
  GpuAsk out;
  std::string_view amount = text;
  // "1g.10gb:1": how many.
  if (const size_t last = text.rfind(':'); last != text.npos) {
    const std::string_view before = text.substr(0, last);
    const size_t colon = before.rfind(':');
    if (LooksLikeProfile(before.substr(colon == before.npos ? 0 : colon + 1))) {
      if (text.substr(last + 1) != "1") {
        return Bad(text, "a process gets one instance: write :1, and run several with -N or an array");
      }
      amount = text = before;
    }
  }
  if (const size_t colon = text.find(':'); colon != text.npos) {
    // Says what is wrong with the type.
    VRUN_ASSIGN(const Gpus typed, ParseGpus(std::string(text.substr(0, colon)) + ":1"));
    out.type = typed.type;
    amount = text.substr(colon + 1);
  }
  if (amount.find("+me") != amount.npos) {
    return Bad(text, "instances with media extensions are not given to jobs: write the name without +me");
  }
  if (LooksLikeProfile(amount)) {
    out.profile = amount;
    return out;
  }
  if (amount.find('.') != amount.npos) {
    VRUN_TRY(ParseShareOfOne(amount, &out));
    return out;
  }
  if (!AllDigits(amount)) return Bad(text, "not a number of GPUs: " + std::string(kForm));
  VRUN_ASSIGN(const Gpus gpus, ParseGpus(amount));
  out.gpus = gpus.count;
  return out;
}

}  // namespace

Status ParseGpuWish(std::string_view text, v1::RunSpec* out) {
  std::vector<std::string> types;
  std::optional<GpuAsk> ask;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('|', at), text.size());
    VRUN_ASSIGN(const GpuAsk one, ParseOne(text.substr(at, end - at)));
    at = end + 1;
    if (ask && !ask->SameAmount(one)) {
      return Bad(text, "alternatives of different numbers: write the same number for each, as in h100:2|a100:2");
    }
    ask = one;
    types.push_back(one.type);
  }
  const bool several = types.size() > 1;
  if (several && std::find(types.begin(), types.end(), "") != types.end()) {
    return Bad(text, "an alternative without a type: write one, as in h100:2|a100:2");
  }
  v1::Resources* resources = out->mutable_resources();
  resources->set_gpus(ask->gpus);
  resources->set_gpu_milli(ask->milli);
  resources->set_gpu_burst_milli(ask->burst);
  resources->set_mig_profile(ask->profile);
  resources->set_gpu_type(several ? "" : types[0]);
  out->mutable_scheduling()->clear_gpu_types();
  if (several) out->mutable_scheduling()->mutable_gpu_types()->Assign(types.begin(), types.end());
  return {};
}

Status ParseGres(std::string_view text, v1::RunSpec* out) {
  if (text == "none") return {};
  if (text == "shard" || text.starts_with("shard:")) {
    return Bad(text, "shards have no size here: write a share, as in -G 0.25 --share=time");
  }
  if (text.starts_with("mps:")) {
    const std::string_view rest = text.substr(4);
    const size_t colon = rest.rfind(':');
    const std::string_view number = colon == rest.npos ? rest : rest.substr(colon + 1);
    const auto hundredths = ParseNumber(number, 100);
    if (!hundredths || *hundredths == 0) return Bad(text, "write the hundredths of a GPU, as in mps:25");
    const std::string type(colon == rest.npos ? std::string_view() : rest.substr(0, colon + 1));
    VRUN_TRY(ParseGpuWish(type + Decimal(static_cast<uint32_t>(*hundredths) * 10), out));
    if (out->resources().gpu_milli() > 0) out->mutable_resources()->set_gpu_sharing(v1::GPU_MPS);
    return {};
  }
  if (text != "gpu" && !text.starts_with("gpu:")) {
    return Bad(text, "not supported yet: GPUs are all that there is, write gpu[:TYPE][:N]");
  }
  const std::string gpus = text == "gpu" ? "1" : std::string(text.substr(4));
  const bool counted = gpus.find(':') != std::string::npos || LooksLikeAmount(gpus);
  return ParseGpuWish(counted ? gpus : gpus + ":1", out);
}

Status ParseShare(std::string_view text, v1::RunSpec* out) {
  if (text != "mps" && text != "time") return Bad(text, "no such way of sharing a GPU: write mps or time");
  out->mutable_resources()->set_gpu_sharing(text == "mps" ? v1::GPU_MPS : v1::GPU_TIME_SLICE);
  return {};
}

Status ParseGpuMemory(std::string_view text, v1::RunSpec* out) {
  VRUN_ASSIGN(const uint64_t bytes, ParseMemory(text));
  if (bytes == 0) return Bad(text, "no memory at all: write how much, as in 20G, or leave the option out");
  out->mutable_resources()->set_gpu_memory_bytes(bytes);
  return {};
}

GpuKind KindOf(const v1::Resources& r) {
  if (!r.mig_profile().empty()) return GpuKind::kInstance;
  if (r.gpu_milli() > 0) return GpuKind::kShare;
  if (r.gpus() > 0) return GpuKind::kWhole;
  return r.gpu_memory_bytes() > 0 ? GpuKind::kByMemory : GpuKind::kNone;
}

Status CheckGpus(const v1::Resources& r) {
  const GpuKind kind = KindOf(r);
  const bool shared = kind == GpuKind::kShare || kind == GpuKind::kByMemory;
  if (r.gpu_sharing() != v1::GPU_SHARING_UNSPECIFIED && !shared) {
    return Error(Code::kInvalid, "--share: " +
                                     std::string(kind == GpuKind::kInstance ? "a MIG instance is nobody else's"
                                                 : kind == GpuKind::kWhole  ? "whole GPUs are nobody else's"
                                                                            : "no share of a GPU is asked for") +
                                     ": write a share, as in -G 0.25, or leave it out");
  }
  if (r.gpu_burst_milli() > 0 && r.gpu_sharing() == v1::GPU_TIME_SLICE) {
    return Error(Code::kInvalid, "-G " + AmountText(r) +
                                     ": with --share=time each uses what the others leave anyway: leave .." +
                                     Decimal(r.gpu_burst_milli()) + " out");
  }
  return {};
}

std::string AmountText(const v1::Resources& r) {
  switch (KindOf(r)) {
    case GpuKind::kInstance: return r.mig_profile();
    case GpuKind::kShare:
      return Decimal(r.gpu_milli()) + (r.gpu_burst_milli() > 0 ? ".." + Decimal(r.gpu_burst_milli()) : "");
    case GpuKind::kByMemory: return FormatBytes(r.gpu_memory_bytes());
    case GpuKind::kNone:
    case GpuKind::kWhole: break;
  }
  return std::to_string(r.gpus());
}

std::string GpusText(const v1::Resources& r) {
  return (r.gpu_type().empty() ? "" : r.gpu_type() + ":") + AmountText(r);
}

}  // namespace vrun::cli
