// SPDX-License-Identifier: Apache-2.0
#include "node/agent/node_facts.h"

#include <dirent.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_list.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::node {
namespace {

constexpr uint32_t kMostGpus = 32;
constexpr size_t kMostBytes = 256;

Error Bad(const std::string& option, const std::string& value, const std::string& why) {
  return Error(Code::kInvalid, option + " " + Escape(value) + ": " + why);
}

Result<uint32_t> Mask(const std::string& option, const std::string& list, uint32_t gpus) {
  auto numbers = ParseCpuList(list);
  if (!numbers || numbers->empty()) return Bad(option, list, "not a list of GPUs: write numbers as in 0-3,6");
  uint32_t mask = 0;
  for (const uint32_t n : *numbers) {
    if (n >= std::min(gpus, kMostGpus)) {
      return Bad(option, list, "there is no GPU " + std::to_string(n) + ": the node has " + std::to_string(gpus));
    }
    mask |= 1u << n;
  }
  return mask;
}

Status AddTexts(const std::string& option, const std::vector<std::string>& texts,
                google::protobuf::RepeatedPtrField<std::string>* out) {
  for (const std::string& text : texts) {
    const bool fine = !text.empty() && text.size() <= kMostBytes && Escape(text) == text &&
                      text.find_first_of(" ,&|\t'\"") == std::string::npos;
    if (!fine) return Bad(option, text, "write NAME or NAME=VALUE, without blanks and commas");
    *out->Add() = text;
  }
  return {};
}

// The line "Device Minor: 3" of the driver's information (NVIDIA driver's README, /proc/driver/nvidia).
int MinorOf(const std::string& information) {
  constexpr char kKey[] = "Device Minor:";
  const size_t at = information.find(kKey);
  if (at == std::string::npos) return -1;
  const char* text = information.c_str() + at + sizeof kKey - 1;
  char* end = nullptr;
  const long minor = std::strtol(text, &end, 10);
  return end == text || minor < 0 || minor >= static_cast<long>(kMostGpus) ? -1 : static_cast<int>(minor);
}

// Empty when some GPU's NUMA node is unknown, or when all have the same.
std::vector<uint32_t> GroupsByNuma(uint32_t gpus, const std::string& proc, const std::string& sys) {
  const std::string directory = proc + "/driver/nvidia/gpus";
  std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (!listing) return {};
  std::map<long, uint32_t> by_node;
  uint32_t seen = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string bus = entry->d_name;
    if (bus[0] == '.') continue;
    const int minor = MinorOf(ReadFile(directory + "/" + bus + "/information", 1 << 16).value_or(""));
    const std::string node = ReadFile(sys + "/bus/pci/devices/" + bus + "/numa_node", 64).value_or("");
    if (minor < 0 || static_cast<uint32_t>(minor) >= gpus || node.empty() || node[0] == '-') return {};
    by_node[std::strtol(node.c_str(), nullptr, 10)] |= 1u << minor;
    seen |= 1u << minor;
  }
  const uint32_t all = gpus >= 32 ? ~0u : (1u << gpus) - 1;
  if (seen != all || by_node.size() < 2) return {};
  std::vector<uint32_t> groups;
  for (const auto& [node, mask] : by_node) groups.push_back(mask);
  return groups;
}

// See NodeFactsOptions::emulated_gpus.
Status Emulate(const std::string& text, uint32_t gpus, v1::NodeFacts* facts) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(':', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  char* end = nullptr;
  const unsigned long gigabytes = parts.size() < 2 ? 0 : std::strtoul(parts[1].c_str(), &end, 10);
  if (parts.size() < 2 || parts.size() > 4 || gigabytes == 0 || *end != 0) {
    return Bad("--emulate-gpus", text, "write TYPE:GIGABYTES[:MIG MODEL[:N]]");
  }
  const unsigned long cut = parts.size() < 3   ? 0
                            : parts.size() < 4 ? gpus
                                               : std::strtoul(parts[3].c_str(), nullptr, 10);
  if (parts.size() > 2) facts->set_mig_model(parts[2]);
  for (uint32_t i = 0; i < gpus; ++i) {
    v1::Gpu* gpu = facts->add_gpus();
    gpu->set_uuid("GPU-emulated-" + std::to_string(i));
    gpu->set_product("emulated " + parts[0]);
    gpu->set_type(parts[0]);
    gpu->set_memory_bytes(uint64_t{gigabytes} << 30);
    gpu->set_minor(i);
    gpu->set_mig(i < cut);
    gpu->set_mps(i >= cut);
  }
  return {};
}

}  // namespace

Result<v1::NodeFacts> DescribeNode(const NodeFactsOptions& options, uint32_t gpus, const std::string& proc,
                                   const std::string& sys) {
  v1::NodeFacts facts;
  VRUN_TRY(AddTexts("--label", options.labels, facts.mutable_labels()));
  VRUN_TRY(AddTexts("--taint", options.taints, facts.mutable_taints()));
  const struct {
    const char* option;
    const std::string& value;
    std::string* to;
  } places[] = {{"--island", options.island, facts.mutable_island()},
                {"--rack", options.rack, facts.mutable_rack()},
                {"--block", options.block, facts.mutable_block()},
                {"--zone", options.zone, facts.mutable_zone()}};
  for (const auto& place : places) {
    if (place.value.size() > kMostBytes || Escape(place.value) != place.value) {
      return Bad(place.option, place.value, "write a name of at most 256 printable characters");
    }
    *place.to = place.value;
  }
  for (const std::string& group : options.gpu_groups) {
    VRUN_ASSIGN(const uint32_t mask, Mask("--gpu-group", group, gpus));
    for (const uint32_t other : facts.gpu_groups()) {
      if ((other & mask) != 0) return Bad("--gpu-group", group, "one of its GPUs is in another group too");
    }
    facts.add_gpu_groups(mask);
  }
  if (options.gpu_groups.empty()) {
    for (const uint32_t mask : GroupsByNuma(gpus, proc, sys)) facts.add_gpu_groups(mask);
  }
  if (!options.bad_gpus.empty()) {
    VRUN_ASSIGN(const uint32_t mask, Mask("--bad-gpus", options.bad_gpus, gpus));
    facts.set_bad_gpus(mask);
  }
  if (options.price != 0) {
    if (!(options.price >= 0.001 && options.price <= 1000)) {
      return Bad("--price", std::to_string(options.price), "write a number from 0.001 to 1000");
    }
    facts.set_price_milli(static_cast<uint32_t>(std::lround(options.price * 1000)));
  }
  facts.set_nics(options.nics);
  if (!options.emulated_gpus.empty()) VRUN_TRY(Emulate(options.emulated_gpus, gpus, &facts));
  return facts;
}

}  // namespace vrun::node
