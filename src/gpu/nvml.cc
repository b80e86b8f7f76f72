// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cctype>

#include "gpu/nvml_abi.h"

namespace vrun::gpu {
namespace {

Error NvmlError(abi::Return rc, const char* name) {
  struct Row {
    abi::Return rc;
    Code code;
    const char* text;
  };
  static constexpr Row kRows[] = {
      {abi::kUninitialized, Code::kInternal, "NVML is not initialized"},
      {abi::kInvalidArgument, Code::kInvalid, "invalid argument"},
      {abi::kNotSupported, Code::kUnsupported, "not supported by this GPU or driver"},
      {abi::kNoPermission, Code::kDenied, "no permission"},
      {abi::kNotFound, Code::kNotFound, "not found"},
      {abi::kDriverNotLoaded, Code::kUnavailable, "the driver is not loaded"},
      {abi::kTimeout, Code::kTimeout, "timeout"},
      {abi::kGpuIsLost, Code::kUnavailable, "the GPU has fallen off the bus"},
      {abi::kInUse, Code::kExists, "in use"},
      {abi::kInsufficientResources, Code::kExhausted, "no room"},
      {abi::kVersionMismatch, Code::kUnsupported, "another version of the structure"},
  };
  for (const Row& row : kRows) {
    if (row.rc == rc) return Error(row.code, std::string(name) + ": " + row.text);
  }
  return Error(Code::kInternal, std::string(name) + ": NVML error " + std::to_string(rc));
}

Error Missing(const char* name) {
  return Error(Code::kUnsupported, std::string(name) + ": this driver has no such call");
}

// Where distributions and images put it. Of "/" the loader knows more places.
std::vector<std::string> Candidates(std::string root) {
  std::vector<std::string> paths;
  while (!root.empty() && root.back() == '/') root.pop_back();
  if (root.empty()) paths.push_back("libnvidia-ml.so.1");
  for (const char* directory : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
                                "/usr/local/nvidia/lib64", "/usr/lib", "/lib64"}) {
    paths.push_back(root + directory + "/libnvidia-ml.so.1");
  }
  return paths;
}

}  // namespace

// A pointer for each call, null where the library has none.
#define VRUN_NVML_CALLS(X)                                                                                         \
  X(nvmlInit_v2, ())                                                                                               \
  X(nvmlShutdown, ())                                                                                              \
  X(nvmlSystemGetDriverVersion, (char*, unsigned))                                                                 \
  X(nvmlDeviceGetCount_v2, (unsigned*))                                                                            \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned, abi::Device*))                                                       \
  X(nvmlDeviceGetName, (abi::Device, char*, unsigned))                                                             \
  X(nvmlDeviceGetUUID, (abi::Device, char*, unsigned))                                                             \
  X(nvmlDeviceGetMinorNumber, (abi::Device, unsigned*))                                                            \
  X(nvmlDeviceGetPciInfo_v3, (abi::Device, abi::Pci*))                                                             \
  X(nvmlDeviceGetMemoryInfo_v2, (abi::Device, abi::MemoryV2*))                                                     \
  X(nvmlDeviceGetMemoryInfo, (abi::Device, abi::Memory*))                                                          \
  X(nvmlDeviceGetCudaComputeCapability, (abi::Device, int*, int*))                                                 \
  X(nvmlDeviceGetMemoryAffinity, (abi::Device, unsigned, unsigned long*, unsigned))                                \
  X(nvmlDeviceGetP2PStatus, (abi::Device, abi::Device, unsigned, unsigned*))                                       \
  X(nvmlDeviceGetTopologyCommonAncestor, (abi::Device, abi::Device, unsigned*))                                    \
  X(nvmlDeviceGetUtilizationRates, (abi::Device, abi::Utilization*))                                               \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (abi::Device, unsigned*, abi::ProcessInfo*))                          \
  X(nvmlDeviceGetProcessUtilization, (abi::Device, abi::ProcessSample*, unsigned*, unsigned long long))            \
  X(nvmlDeviceGetTotalEnergyConsumption, (abi::Device, unsigned long long*))                                       \
  X(nvmlDeviceGetTemperature, (abi::Device, unsigned, unsigned*))                                                  \
  X(nvmlDeviceGetTemperatureThreshold, (abi::Device, unsigned, unsigned*))                                         \
  X(nvmlDeviceGetTotalEccErrors, (abi::Device, unsigned, unsigned, unsigned long long*))                           \
  X(nvmlDeviceGetRemappedRows, (abi::Device, unsigned*, unsigned*, unsigned*, unsigned*))                          \
  X(nvmlDeviceGetMigMode, (abi::Device, unsigned*, unsigned*))                                                     \
  X(nvmlDeviceGetMaxMigDeviceCount, (abi::Device, unsigned*))                                                      \
  X(nvmlDeviceGetGpuInstanceProfileInfo, (abi::Device, unsigned, abi::GpuInstanceProfileV1*))                      \
  X(nvmlDeviceGetGpuInstanceProfileInfoV, (abi::Device, unsigned, void*))                                          \
  X(nvmlDeviceGetGpuInstancePossiblePlacements_v2, (abi::Device, unsigned, abi::GpuInstancePlacement*, unsigned*)) \
  X(nvmlDeviceCreateGpuInstanceWithPlacement,                                                                      \
    (abi::Device, unsigned, const abi::GpuInstancePlacement*, abi::GpuInstance*))                                  \
  X(nvmlDeviceGetGpuInstances, (abi::Device, unsigned, abi::GpuInstance*, unsigned*))                              \
  X(nvmlGpuInstanceGetInfo, (abi::GpuInstance, abi::GpuInstanceInfo*))                                             \
  X(nvmlGpuInstanceDestroy, (abi::GpuInstance))                                                                    \
  X(nvmlGpuInstanceGetComputeInstanceProfileInfo,                                                                  \
    (abi::GpuInstance, unsigned, unsigned, abi::ComputeInstanceProfile*))                                          \
  X(nvmlGpuInstanceCreateComputeInstance, (abi::GpuInstance, unsigned, abi::ComputeInstance*))                     \
  X(nvmlGpuInstanceGetComputeInstances, (abi::GpuInstance, unsigned, abi::ComputeInstance*, unsigned*))            \
  X(nvmlComputeInstanceGetInfo_v2, (abi::ComputeInstance, abi::ComputeInstanceInfo*))                              \
  X(nvmlComputeInstanceDestroy, (abi::ComputeInstance))                                                            \
  X(nvmlDeviceGetMigDeviceHandleByIndex, (abi::Device, unsigned, abi::Device*))                                    \
  X(nvmlDeviceGetGpuInstanceId, (abi::Device, unsigned*))                                                          \
  X(nvmlDeviceGetComputeInstanceId, (abi::Device, unsigned*))                                                      \
  X(nvmlEventSetCreate, (abi::EventSet*))                                                                          \
  X(nvmlEventSetFree, (abi::EventSet))                                                                             \
  X(nvmlEventSetWait_v2, (abi::EventSet, abi::EventData*, unsigned))                                               \
  X(nvmlDeviceRegisterEvents, (abi::Device, unsigned long long, abi::EventSet))                                    \
  X(nvmlGpmQueryDeviceSupport, (abi::Device, abi::GpmSupport*))                                                    \
  X(nvmlGpmSampleAlloc, (abi::GpmSample*))                                                                         \
  X(nvmlGpmSampleFree, (abi::GpmSample))                                                                           \
  X(nvmlGpmSampleGet, (abi::Device, abi::GpmSample))                                                               \
  X(nvmlGpmMigSampleGet, (abi::Device, unsigned, abi::GpmSample))                                                  \
  X(nvmlGpmMetricsGet, (abi::GpmMetrics*))

struct Nvml::Calls {
  void* library = nullptr;
  bool started = false;
#define VRUN_NVML_POINTER(name, arguments) abi::Return(*name) arguments = nullptr;
  VRUN_NVML_CALLS(VRUN_NVML_POINTER)
#undef VRUN_NVML_POINTER

  explicit Calls(void* loaded) : library(loaded) {
#define VRUN_NVML_LOOK(name, arguments) name = reinterpret_cast<abi::Return(*) arguments>(::dlsym(loaded, #name));
    VRUN_NVML_CALLS(VRUN_NVML_LOOK)
#undef VRUN_NVML_LOOK
  }
  ~Calls() {
    if (started && nvmlShutdown != nullptr) nvmlShutdown();
    ::dlclose(library);
  }
};

// Calls it and returns its error. `name` must be in the list above.
#define VRUN_NVML(name, ...)                                                                                   \
  do {                                                                                                         \
    if (calls_->name == nullptr) return Missing(#name);                                                        \
    if (const abi::Return rc_ = calls_->name(__VA_ARGS__); rc_ != abi::kSuccess) return NvmlError(rc_, #name); \
  } while (0)

Nvml::Nvml(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}
Nvml::~Nvml() = default;

Result<std::unique_ptr<Nvml>> Nvml::Open(const std::string& driver_root) {
  for (const std::string& path : Candidates(driver_root)) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto calls = std::make_unique<Calls>(library);
    if (calls->nvmlInit_v2 == nullptr)
      return Error(Code::kUnsupported, path + ": it has no nvmlInit_v2: the driver is too old");
    if (const abi::Return rc = calls->nvmlInit_v2(); rc != abi::kSuccess) return NvmlError(rc, "nvmlInit_v2");
    calls->started = true;
    return std::unique_ptr<Nvml>(new Nvml(std::move(calls)));
  }
  return Error(Code::kNotFound, "libnvidia-ml.so.1: not on this machine");
}

Result<std::string> Nvml::Text(int (*call)(Device, char*, unsigned), const char* name, Device device) {
  if (call == nullptr) return Missing(name);
  char text[96] = "";
  if (const abi::Return rc = call(device, text, sizeof text); rc != abi::kSuccess) return NvmlError(rc, name);
  return std::string(text);
}

Result<std::string> Nvml::DriverVersion() {
  char text[96] = "";
  VRUN_NVML(nvmlSystemGetDriverVersion, text, sizeof text);
  return std::string(text);
}

Result<uint32_t> Nvml::Count() {
  unsigned count = 0;
  VRUN_NVML(nvmlDeviceGetCount_v2, &count);
  return count;
}

Result<Nvml::Device> Nvml::At(uint32_t index) {
  Device device = nullptr;
  VRUN_NVML(nvmlDeviceGetHandleByIndex_v2, index, &device);
  return device;
}

Result<std::string> Nvml::Name(Device device) { return Text(calls_->nvmlDeviceGetName, "nvmlDeviceGetName", device); }
Result<std::string> Nvml::Uuid(Device device) { return Text(calls_->nvmlDeviceGetUUID, "nvmlDeviceGetUUID", device); }

Result<std::string> Nvml::PciBusId(Device device) {
  abi::Pci pci{};
  VRUN_NVML(nvmlDeviceGetPciInfo_v3, device, &pci);
  pci.bus_id[sizeof pci.bus_id - 1] = '\0';
  std::string id = pci.bus_id;
  for (char& c : id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return id;
}

Result<uint32_t> Nvml::Minor(Device device) {
  unsigned minor = 0;
  VRUN_NVML(nvmlDeviceGetMinorNumber, device, &minor);
  return minor;
}

Result<Nvml::Memory> Nvml::MemoryOf(Device device) {
  abi::MemoryV2 second{};
  second.version = abi::Version<abi::MemoryV2>(2);
  if (calls_->nvmlDeviceGetMemoryInfo_v2 != nullptr) {
    const abi::Return rc = calls_->nvmlDeviceGetMemoryInfo_v2(device, &second);
    if (rc == abi::kSuccess) return Memory{second.total, second.used, second.free};
    if (rc != abi::kVersionMismatch && rc != abi::kNotSupported) return NvmlError(rc, "nvmlDeviceGetMemoryInfo_v2");
  }
  abi::Memory first{};
  VRUN_NVML(nvmlDeviceGetMemoryInfo, device, &first);
  return Memory{first.total, first.used, first.free};
}

Result<uint32_t> Nvml::CapabilityMajor(Device device) {
  int major = 0, minor = 0;
  VRUN_NVML(nvmlDeviceGetCudaComputeCapability, device, &major, &minor);
  return static_cast<uint32_t>(major);
}

Result<uint32_t> Nvml::NumaNode(Device device) {
  // nvmlDeviceGetNumaNodeId answers NOT_SUPPORTED on machines where the affinity does answer.
  unsigned long nodes[4] = {};
  VRUN_NVML(nvmlDeviceGetMemoryAffinity, device, 4, nodes, 0);
  for (uint32_t word = 0; word < 4; ++word) {
    if (nodes[word] != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(nodes[word]));
  }
  return Error(Code::kNotFound, "nvmlDeviceGetMemoryAffinity: no memory node");
}

Result<bool> Nvml::LinkedByNvlink(Device one, Device two) {
  unsigned status = 1;
  VRUN_NVML(nvmlDeviceGetP2PStatus, one, two, abi::kP2pNvlink, &status);
  return status == 0;
}

Result<bool> Nvml::OnePcieTree(Device one, Device two) {
  unsigned level = 0;
  VRUN_NVML(nvmlDeviceGetTopologyCommonAncestor, one, two, &level);
  return level <= abi::kTopologyHostBridge;
}

Result<uint32_t> Nvml::UtilizationPercent(Device device) {
  abi::Utilization utilization{};
  VRUN_NVML(nvmlDeviceGetUtilizationRates, device, &utilization);
  return utilization.gpu;
}

Result<std::vector<Nvml::Process>> Nvml::Processes(Device device) {
  if (calls_->nvmlDeviceGetComputeRunningProcesses_v3 == nullptr)
    return Missing("nvmlDeviceGetComputeRunningProcesses_v3");
  std::vector<abi::ProcessInfo> infos(64);
  for (;;) {
    auto count = static_cast<unsigned>(infos.size());
    const abi::Return rc = calls_->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data());
    if (rc == abi::kInsufficientSize && infos.size() < 1u << 16) {
      infos.resize(std::max<size_t>(count, infos.size()) * 2);  // more may start meanwhile
      continue;
    }
    if (rc != abi::kSuccess) return NvmlError(rc, "nvmlDeviceGetComputeRunningProcesses_v3");
    std::vector<Process> processes;
    for (unsigned i = 0; i < count; ++i) {
      processes.push_back(
          {infos[i].pid, infos[i].used_memory == ~0ull ? 0 : infos[i].used_memory, infos[i].gpu_instance});
    }
    return processes;
  }
}

Result<std::vector<Nvml::ProcessUse>> Nvml::ProcessUses(Device device, uint64_t since_us) {
  if (calls_->nvmlDeviceGetProcessUtilization == nullptr) return Missing("nvmlDeviceGetProcessUtilization");
  unsigned count = 0;
  abi::Return rc = calls_->nvmlDeviceGetProcessUtilization(device, nullptr, &count, since_us);
  if (rc == abi::kNotFound) return std::vector<ProcessUse>{};
  if (rc != abi::kSuccess && rc != abi::kInsufficientSize) return NvmlError(rc, "nvmlDeviceGetProcessUtilization");
  std::vector<abi::ProcessSample> samples(count + 64);
  count = static_cast<unsigned>(samples.size());
  rc = calls_->nvmlDeviceGetProcessUtilization(device, samples.data(), &count, since_us);
  if (rc == abi::kNotFound) return std::vector<ProcessUse>{};
  if (rc != abi::kSuccess) return NvmlError(rc, "nvmlDeviceGetProcessUtilization");
  std::vector<ProcessUse> uses;
  for (unsigned i = 0; i < count && i < samples.size(); ++i) {
    if (samples[i].pid != 0) uses.push_back({samples[i].pid, samples[i].sm, samples[i].time_us});
  }
  return uses;
}

Result<uint64_t> Nvml::EnergyMillijoules(Device device) {
  unsigned long long energy = 0;
  VRUN_NVML(nvmlDeviceGetTotalEnergyConsumption, device, &energy);
  return energy;
}

Result<uint32_t> Nvml::Temperature(Device device) {
  unsigned degrees = 0;
  VRUN_NVML(nvmlDeviceGetTemperature, device, 0, &degrees);
  return degrees;
}

Result<uint32_t> Nvml::SlowdownTemperature(Device device) {
  unsigned degrees = 0;
  VRUN_NVML(nvmlDeviceGetTemperatureThreshold, device, abi::kThresholdSlowdown, &degrees);
  return degrees;
}

Result<uint64_t> Nvml::UncorrectedEccErrors(Device device) {
  unsigned long long errors = 0;
  VRUN_NVML(nvmlDeviceGetTotalEccErrors, device, abi::kUncorrected, abi::kVolatile, &errors);
  return errors;
}

Result<Nvml::RemappedRows> Nvml::Remapped(Device device) {
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  VRUN_NVML(nvmlDeviceGetRemappedRows, device, &corrected, &uncorrected, &pending, &failed);
  return RemappedRows{pending != 0, failed != 0};
}

// --- MIG

Result<bool> Nvml::MigMode(Device device) {
  if (calls_->nvmlDeviceGetMigMode == nullptr) return false;
  unsigned current = 0, pending = 0;
  const abi::Return rc = calls_->nvmlDeviceGetMigMode(device, &current, &pending);
  if (rc == abi::kNotSupported) return false;
  if (rc != abi::kSuccess) return NvmlError(rc, "nvmlDeviceGetMigMode");
  return current != 0;
}

Result<std::vector<Nvml::MigProfile>> Nvml::MigProfiles(Device device) {
  std::vector<MigProfile> profiles;
  for (uint32_t number = 0; number < abi::kGpuInstanceProfiles; ++number) {
    const bool media = number == abi::kProfileMediaExtensions;
    if (calls_->nvmlDeviceGetGpuInstanceProfileInfoV != nullptr) {
      abi::GpuInstanceProfileV3 third{};
      third.version = abi::Version<abi::GpuInstanceProfileV3>(3);
      if (calls_->nvmlDeviceGetGpuInstanceProfileInfoV(device, number, &third) == abi::kSuccess) {
        profiles.push_back(
            {third.id, third.slices, static_cast<uint32_t>(third.memory_mib), third.instances, media, 0});
        continue;
      }
      abi::GpuInstanceProfileV2 second{};
      second.version = abi::Version<abi::GpuInstanceProfileV2>(2);
      if (calls_->nvmlDeviceGetGpuInstanceProfileInfoV(device, number, &second) == abi::kSuccess) {
        profiles.push_back(
            {second.id, second.slices, static_cast<uint32_t>(second.memory_mib), second.instances, media, 0});
        continue;
      }
    }
    if (calls_->nvmlDeviceGetGpuInstanceProfileInfo == nullptr) continue;
    abi::GpuInstanceProfileV1 first{};
    if (calls_->nvmlDeviceGetGpuInstanceProfileInfo(device, number, &first) == abi::kSuccess) {
      profiles.push_back({first.id, first.slices, static_cast<uint32_t>(first.memory_mib), first.instances, media, 0});
    }
  }
  if (profiles.empty()) return Error(Code::kUnsupported, "the GPU has no MIG profiles");
  for (MigProfile& profile : profiles) {
    abi::GpuInstancePlacement places[64] = {};
    unsigned count = 64;
    if (calls_->nvmlDeviceGetGpuInstancePossiblePlacements_v2 == nullptr) break;
    const abi::Return rc = calls_->nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile.id, places, &count);
    if (rc == abi::kSuccess && count > 0) profile.size = places[0].size;
  }
  return profiles;
}

Result<std::vector<Nvml::Instance>> Nvml::Instances(Device device) {
  VRUN_ASSIGN(const std::vector<MigProfile> profiles, MigProfiles(device));
  std::vector<Instance> found;
  for (const MigProfile& profile : profiles) {
    std::vector<abi::GpuInstance> handles(profile.most + 1);
    unsigned count = static_cast<unsigned>(handles.size());
    VRUN_NVML(nvmlDeviceGetGpuInstances, device, profile.id, handles.data(), &count);
    for (unsigned i = 0; i < count && i < handles.size(); ++i) {
      abi::GpuInstanceInfo info{};
      VRUN_NVML(nvmlGpuInstanceGetInfo, handles[i], &info);
      Instance instance;
      instance.gpu_instance = info.id;
      instance.profile_id = info.profile_id;
      instance.start = info.placement.start;
      instance.size = info.placement.size;
      found.push_back(instance);
    }
  }
  unsigned most = 0;
  VRUN_NVML(nvmlDeviceGetMaxMigDeviceCount, device, &most);
  for (unsigned i = 0; i < most; ++i) {
    Device mig = nullptr;
    if (calls_->nvmlDeviceGetMigDeviceHandleByIndex == nullptr) break;
    if (calls_->nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) != abi::kSuccess) continue;
    unsigned gpu_instance = 0, compute_instance = 0;
    VRUN_NVML(nvmlDeviceGetGpuInstanceId, mig, &gpu_instance);
    VRUN_NVML(nvmlDeviceGetComputeInstanceId, mig, &compute_instance);
    for (Instance& instance : found) {
      if (instance.gpu_instance != gpu_instance) continue;
      instance.compute_instance = instance.uuid.empty() ? compute_instance : kNoInstance;
      instance.uuid = Uuid(mig).value_or("");
      instance.device = mig;
    }
  }
  return found;
}

Result<Nvml::Instance> Nvml::CreateInstance(Device device, const MigProfile& profile, uint32_t start) {
  const abi::GpuInstancePlacement place{start, profile.size};
  abi::GpuInstance handle = nullptr;
  VRUN_NVML(nvmlDeviceCreateGpuInstanceWithPlacement, device, profile.id, &place, &handle);
  abi::GpuInstanceInfo info{};
  VRUN_NVML(nvmlGpuInstanceGetInfo, handle, &info);
  const auto compute = [&]() -> Status {
    // The compute profile that takes all slices of the instance.
    for (uint32_t number = 0; number < abi::kComputeInstanceProfiles; ++number) {
      abi::ComputeInstanceProfile whole{};
      if (calls_->nvmlGpuInstanceGetComputeInstanceProfileInfo == nullptr) break;
      if (calls_->nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, number, 0, &whole) != abi::kSuccess) continue;
      if (whole.slices != profile.slices) continue;
      abi::ComputeInstance made = nullptr;
      VRUN_NVML(nvmlGpuInstanceCreateComputeInstance, handle, whole.id, &made);
      return {};
    }
    return Error(Code::kUnsupported, "MIG: no compute instance profile takes the whole GPU instance");
  };
  if (const Status made = compute(); !made) {
    static_cast<void>(DestroyInstance(device, info.id));
    return made.error();
  }
  VRUN_ASSIGN(const std::vector<Instance> instances, Instances(device));
  for (const Instance& instance : instances) {
    if (instance.gpu_instance == info.id && instance.compute_instance != kNoInstance) return instance;
  }
  return Error(Code::kInternal, "MIG: the new instance has no device");
}

Status Nvml::DestroyInstance(Device device, uint32_t gpu_instance) {
  VRUN_ASSIGN(const std::vector<MigProfile> profiles, MigProfiles(device));
  for (const MigProfile& profile : profiles) {
    std::vector<abi::GpuInstance> handles(profile.most + 1);
    unsigned count = static_cast<unsigned>(handles.size());
    VRUN_NVML(nvmlDeviceGetGpuInstances, device, profile.id, handles.data(), &count);
    for (unsigned i = 0; i < count && i < handles.size(); ++i) {
      abi::GpuInstanceInfo info{};
      VRUN_NVML(nvmlGpuInstanceGetInfo, handles[i], &info);
      if (info.id != gpu_instance) continue;
      for (uint32_t number = 0; number < abi::kComputeInstanceProfiles; ++number) {
        abi::ComputeInstanceProfile compute{};
        if (calls_->nvmlGpuInstanceGetComputeInstanceProfileInfo == nullptr) break;
        if (calls_->nvmlGpuInstanceGetComputeInstanceProfileInfo(handles[i], number, 0, &compute) != abi::kSuccess)
          continue;
        std::vector<abi::ComputeInstance> inner(8);
        unsigned inner_count = 8;
        VRUN_NVML(nvmlGpuInstanceGetComputeInstances, handles[i], compute.id, inner.data(), &inner_count);
        for (unsigned c = 0; c < inner_count && c < inner.size(); ++c) VRUN_NVML(nvmlComputeInstanceDestroy, inner[c]);
      }
      VRUN_NVML(nvmlGpuInstanceDestroy, handles[i]);
      return {};
    }
  }
  return Error(Code::kNotFound, "MIG: there is no GPU instance " + std::to_string(gpu_instance));
}

// --- GPM

Nvml::Sample::~Sample() {
  if (raw_ != nullptr && nvml_->calls_->nvmlGpmSampleFree != nullptr) nvml_->calls_->nvmlGpmSampleFree(raw_);
}

Result<std::unique_ptr<Nvml::Sample>> Nvml::TakeSample(Device device, uint32_t gpu_instance) {
  abi::GpmSupport support{};
  support.version = 1;
  VRUN_NVML(nvmlGpmQueryDeviceSupport, device, &support);
  if (support.supported == 0) return Error(Code::kUnsupported, "GPM: not supported by this GPU");
  std::unique_ptr<Sample> sample(new Sample(this));
  VRUN_NVML(nvmlGpmSampleAlloc, &sample->raw_);
  if (gpu_instance == kNoInstance) {
    VRUN_NVML(nvmlGpmSampleGet, device, sample->raw_);
  } else {
    VRUN_NVML(nvmlGpmMigSampleGet, device, gpu_instance, sample->raw_);
  }
  return sample;
}

Result<double> Nvml::SmPercent(const Sample& first, const Sample& second) {
  abi::GpmMetrics metrics{};
  metrics.version = 1;
  metrics.count = 1;
  metrics.first = first.raw_;
  metrics.second = second.raw_;
  metrics.metrics[0].id = abi::kGpmSmUtilization;
  VRUN_NVML(nvmlGpmMetricsGet, &metrics);
  if (metrics.metrics[0].result != abi::kSuccess) return NvmlError(metrics.metrics[0].result, "nvmlGpmMetricsGet");
  return metrics.metrics[0].value;
}

// --- Events

Nvml::Events::~Events() {
  if (raw_ != nullptr && nvml_->calls_->nvmlEventSetFree != nullptr) nvml_->calls_->nvmlEventSetFree(raw_);
}

Result<std::unique_ptr<Nvml::Events>> Nvml::Watch() {
  std::unique_ptr<Events> events(new Events(this));
  VRUN_NVML(nvmlEventSetCreate, &events->raw_);
  VRUN_ASSIGN(const uint32_t count, Count());
  bool any = false;
  for (uint32_t i = 0; i < count; ++i) {
    const Result<Device> device = At(i);
    events->devices_.push_back(device.value_or(nullptr));
    if (!device || calls_->nvmlDeviceRegisterEvents == nullptr) continue;  // a lost one tells nothing, the others do
    any |= calls_->nvmlDeviceRegisterEvents(*device, abi::kEventXid, events->raw_) == abi::kSuccess;
  }
  if (!any) return Error(Code::kUnsupported, "no GPU of this machine reports XIDs");
  return events;
}

Result<Nvml::Xid> Nvml::Events::Wait(uint32_t timeout_ms) {
  const std::unique_ptr<Calls>& calls_ = nvml_->calls_;
  abi::EventData data{};
  VRUN_NVML(nvmlEventSetWait_v2, raw_, &data, timeout_ms);
  const auto device = std::find(devices_.begin(), devices_.end(), data.device);
  if (device == devices_.end() || data.type != abi::kEventXid) return Error(Code::kTimeout, "an event of no GPU");
  return Xid{static_cast<uint32_t>(device - devices_.begin()), static_cast<uint32_t>(data.data), data.gpu_instance};
}

}  // namespace vrun::gpu
