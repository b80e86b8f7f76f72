// SPDX-License-Identifier: Apache-2.0
#include "gpu/mig.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "base/escape.h"
#include "base/files.h"
#include "gpu/gpu_names.h"

namespace vrun::gpu {

Result<uint32_t> MigMinor(std::string_view mig_minors, std::string_view key) {
  for (size_t at = 0; at < mig_minors.size();) {
    const size_t end = std::min(mig_minors.find('\n', at), mig_minors.size());
    const std::string_view line = mig_minors.substr(at, end - at);
    at = end + 1;
    if (line.size() <= key.size() || !line.starts_with(key) || line[key.size()] != ' ') continue;
    const std::string_view number = line.substr(key.size() + 1);
    uint32_t minor = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), minor);
    if (error != std::errc() || rest != number.data() + number.size()) {
      return Error(Code::kCorrupt, "mig-minors: " + Escape(line) + ": not a number");
    }
    return minor;
  }
  return Error(Code::kNotFound, "mig-minors: it has no " + std::string(key));
}

std::string MigInstances::File(const v1::Gpu& gpu, uint32_t start) const {
  return directory_ + "/" + gpu.uuid() + "." + std::to_string(start);
}

Result<MigInstance> MigInstances::Describe(const v1::Gpu& gpu, const Nvml::Instance& instance) const {
  MigInstance out;
  out.gpu_instance = instance.gpu_instance;
  out.compute_instance = instance.compute_instance;
  out.uuid = instance.uuid;
  VRUN_ASSIGN(const std::string minors, ReadFile(proc_ + "/driver/nvidia-caps/mig-minors"));
  const std::string key = "gpu" + std::to_string(gpu.minor()) + "/gi" + std::to_string(instance.gpu_instance);
  VRUN_ASSIGN(out.gpu_instance_cap, MigMinor(minors, key + "/access"));
  VRUN_ASSIGN(out.compute_instance_cap,
              MigMinor(minors, key + "/ci" + std::to_string(instance.compute_instance) + "/access"));
  return out;
}

Result<MigInstance> MigInstances::Take(uint32_t number, const v1::Gpu& gpu, const std::string& profile,
                                       uint32_t start) {
  const std::string name = "GPU " + std::to_string(number);
  VRUN_ASSIGN(const Nvml::Device device, nvml_->At(number));
  VRUN_ASSIGN(const bool mode, nvml_->MigMode(device));
  if (!mode)
    return Error(Code::kUnsupported,
                 name + " is not in MIG mode: `nvidia-smi -i " + std::to_string(number) + " -mig 1`");
  VRUN_ASSIGN(const std::vector<Nvml::MigProfile> profiles, nvml_->MigProfiles(device));
  const Nvml::MigProfile* wanted = nullptr;
  for (const Nvml::MigProfile& p : profiles) {
    if (MigProfileName(p.slices, p.memory_mib, gpu.memory_bytes(), p.media) == profile) wanted = &p;
  }
  if (wanted == nullptr || wanted->size == 0)
    return Error(Code::kNotFound, name + " has no MIG profile " + Escape(profile));

  VRUN_ASSIGN(const std::vector<Nvml::Instance> instances, nvml_->Instances(device));
  for (const Nvml::Instance& i : instances) {
    if (i.start >= start + wanted->size || start >= i.start + i.size) continue;
    const bool same = i.start == start && i.profile_id == wanted->id;
    if (same && i.compute_instance != Nvml::kNoInstance) return Describe(gpu, i);
    // Made by us, but not finished when an agent died.
    if (same && PathExists(File(gpu, start))) {
      VRUN_TRY(nvml_->DestroyInstance(device, i.gpu_instance));
      continue;
    }
    return Error(Code::kExhausted, name + ": GPU instance " + std::to_string(i.gpu_instance) + " lies where " +
                                       profile +
                                       " should be made: destroy it with `nvidia-smi mig -dgi`, or cordon the node");
  }
  VRUN_TRY(WriteFileAtomic(File(gpu, start), profile + "\n", 0600));
  const Result<Nvml::Instance> made = nvml_->CreateInstance(device, *wanted, start);
  if (!made) {
    ::unlink(File(gpu, start).c_str());
    return made.error().With(name + ": cannot make a MIG instance " + profile);
  }
  return Describe(gpu, *made);
}

Status MigInstances::Give(uint32_t number, const v1::Gpu& gpu, uint32_t start) {
  if (!PathExists(File(gpu, start))) return {};
  VRUN_ASSIGN(const Nvml::Device device, nvml_->At(number));
  VRUN_ASSIGN(const std::vector<Nvml::Instance> instances, nvml_->Instances(device));
  for (const Nvml::Instance& i : instances) {
    if (i.start == start) VRUN_TRY(nvml_->DestroyInstance(device, i.gpu_instance));
  }
  if (::unlink(File(gpu, start).c_str()) != 0) return ErrnoError(File(gpu, start));
  return {};
}

std::vector<std::string> MigInstances::Recover(const std::vector<v1::Gpu>& gpus,
                                               const std::set<std::pair<std::string, uint32_t>>& alive) {
  std::vector<std::string> problems;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename();
    const size_t dot = name.rfind('.');
    if (dot == name.npos) continue;
    uint32_t start = 0;
    std::from_chars(name.data() + dot + 1, name.data() + name.size(), start);
    const std::string uuid = name.substr(0, dot);
    if (alive.contains({uuid, start})) continue;
    bool known = false;
    for (uint32_t i = 0; i < gpus.size(); ++i) {
      if (gpus[i].uuid() != uuid) continue;
      known = true;
      if (const Status given = Give(i, gpus[i], start); !given) problems.push_back(given.error().message());
    }
    if (!known) ::unlink(entry.path().c_str());  // the card is no longer in this machine
  }
  return problems;
}

}  // namespace vrun::gpu
