// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 without a GPU: answers from the files of fake_state.h. Behaves as decision 32 found the real one,
// including its refusals. In a pod, where those files are not, it counts the device nodes that may be opened.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake_state.h"
#include "gpu/nvml_abi.h"

using namespace vrun::gpu::abi;  // NOLINT: this file implements it
using fake::Instance;
using fake::Instances;

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

fake::State state;
bool managed = false;  // the files are there

// A handle is a number in the form of a pointer: kind, GPU, id.
enum Kind : uint64_t { kGpuKind = 1, kMigKind = 2, kGiKind = 3, kCiKind = 4, kSetKind = 5, kSampleKind = 6 };
void* Handle(Kind kind, uint64_t gpu, uint64_t id = 0) {
  return reinterpret_cast<void*>(kind << 32 | gpu << 16 | id << 4 | 8);  // NOLINT
}
uint64_t Raw(const void* handle) { return reinterpret_cast<uint64_t>(handle); }
Kind KindOf(const void* handle) { return static_cast<Kind>(Raw(handle) >> 32); }
uint32_t GpuOf(const void* handle) { return static_cast<uint32_t>(Raw(handle) >> 16 & 0xffff); }
uint32_t IdOf(const void* handle) { return static_cast<uint32_t>(Raw(handle) >> 4 & 0xfff); }

uint32_t OpenableNodes() {
  uint32_t n = 0;
  for (int i = 0; i < 32; ++i) {
    const int fd = ::open(("/dev/nvidia" + std::to_string(i)).c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) ::close(fd);
    if (fd >= 0 || errno == ENXIO || errno == ENODEV) ++n;
  }
  return n;
}

// kSuccess if it is a GPU that answers.
Return Check(const void* device, Kind kind = kGpuKind) {
  if (managed) state.Refresh();
  if (KindOf(device) != kind) return kInvalidArgument;
  if (!managed) return kSuccess;
  if (GpuOf(device) >= state.count()) return kInvalidArgument;
  return state.GpuNumber(GpuOf(device), "lost") != 0 ? kGpuIsLost : kSuccess;
}

#define FAKE_CHECK(...)                                                     \
  do {                                                                      \
    if (const Return bad = Check(__VA_ARGS__); bad != kSuccess) return bad; \
  } while (0)

Return Copy(const std::string& text, char* to, uint32_t size) {
  if (text.size() + 1 > size) return kInsufficientSize;
  ::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

uint64_t Now() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000 + static_cast<uint64_t>(t.tv_nsec) / 1000;
}

uint64_t Used(uint32_t gpu, uint32_t instance = ~0u) {
  uint64_t used = instance == ~0u ? state.GpuNumber(gpu, "used") : 0;
  for (const fake::Process& p : state.Processes(gpu)) {
    if (instance == ~0u || p.gpu_instance == instance) used += p.bytes;
  }
  return used;
}

// Profiles of GPUs with seven compute slices, by number (nvml.h) and id (`nvidia-smi mig -lgip`).
struct Profile {
  uint32_t number, id, slices, eighths, most, starts;
};
constexpr Profile kProfiles[] = {
    {0, 19, 1, 1, 7, 0b01111111}, {1, 14, 2, 2, 3, 0b00010101}, {2, 9, 3, 4, 2, 0b00010001},  {3, 5, 4, 4, 1, 1},
    {4, 0, 7, 8, 1, 1},           {7, 20, 1, 1, 1, 0b01111111}, {9, 15, 1, 2, 4, 0b01010101},
};
const Profile* ProfileOfNumber(uint32_t number) {
  for (const Profile& p : kProfiles) {
    if (p.number == number) return &p;
  }
  return nullptr;
}
const Profile* ProfileOfId(uint32_t id) {
  for (const Profile& p : kProfiles) {
    if (p.id == id) return &p;
  }
  return nullptr;
}
bool Divisible(uint32_t gpu) { return state.GpuNumber(gpu, "divisible", 1) != 0; }
// As much less than its eighths as on a real card.
uint64_t ProfileMib(uint32_t gpu, const Profile& p) {
  return state.GpuNumber(gpu, "memory") / 8 * p.eighths / 1048576 * 92 / 100;
}

Instance* Find(Instances* instances, uint32_t gpu, uint32_t id) {
  for (Instance& i : instances->all) {
    if (i.gpu == gpu && i.id == id) return &i;
  }
  return nullptr;
}

bool InUse(uint32_t gpu, uint32_t instance) {
  for (const fake::Process& p : state.Processes(gpu)) {
    if (p.gpu_instance == instance) return true;
  }
  return false;
}

}  // namespace

FAKE_EXPORT Return nvmlInit_v2() {
  managed = state.Refresh();
  if (managed) return state.Number("broken", 0) != 0 ? kDriverNotLoaded : kSuccess;
  const int fd = ::open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd >= 0) ::close(fd);
  return fd >= 0 || errno == ENXIO || errno == ENODEV ? kSuccess : kDriverNotLoaded;
}
FAKE_EXPORT Return nvmlShutdown() { return kSuccess; }
FAKE_EXPORT Return nvmlSystemGetDriverVersion(char* to, uint32_t size) {
  return Copy(managed ? state.Text("driver", "580.159.04") : "580.159.04", to, size);
}
FAKE_EXPORT Return nvmlSystemGetCudaDriverVersion_v2(int* to) {
  *to = 13000;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetCount_v2(uint32_t* to) {
  if (managed) state.Refresh();
  *to = managed ? state.count() : OpenableNodes();
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetHandleByIndex_v2(uint32_t index, Device* to) {
  if (managed && index >= state.count()) return kInvalidArgument;
  *to = Handle(kGpuKind, index);
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetName(Device device, char* to, uint32_t size) {
  FAKE_CHECK(device);
  return Copy(state.GpuText(GpuOf(device), "product", "NVIDIA fake"), to, size);
}
FAKE_EXPORT Return nvmlDeviceGetUUID(Device device, char* to, uint32_t size) {
  if (KindOf(device) == kMigKind) {
    char text[64];
    ::snprintf(text, sizeof text, "MIG-%08x-0000-0000-0000-%012x", GpuOf(device), IdOf(device));
    return Copy(text, to, size);
  }
  FAKE_CHECK(device);
  return Copy(state.GpuText(GpuOf(device), "uuid", "GPU-in-a-pod-" + std::to_string(GpuOf(device))), to, size);
}
FAKE_EXPORT Return nvmlDeviceGetMinorNumber(Device device, uint32_t* to) {
  FAKE_CHECK(device);
  *to = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "minor", GpuOf(device)));
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, Pci* to) {
  FAKE_CHECK(device);
  *to = {};
  ::snprintf(to->bus_id, sizeof to->bus_id, "%s", state.GpuText(GpuOf(device), "bus", "00000000:00:00.0").c_str());
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* to) {
  if (to->version != Version<MemoryV2>(2)) return kVersionMismatch;
  const uint32_t gpu = GpuOf(device);
  if (KindOf(device) == kMigKind) {
    FAKE_CHECK(Handle(kGpuKind, gpu));
    Instances instances(state.directory());
    const Instance* i = Find(&instances, gpu, IdOf(device));
    const Profile* p = i == nullptr ? nullptr : ProfileOfId(i->profile);
    if (p == nullptr) return kNotFound;
    to->total = ProfileMib(gpu, *p) << 20;
    to->used = Used(gpu, i->id);
  } else {
    FAKE_CHECK(device);
    to->total = state.GpuNumber(gpu, "memory");
    to->used = Used(gpu);
  }
  to->reserved = 0;
  to->free = to->total - (to->used < to->total ? to->used : to->total);
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetUtilizationRates(Device device, Utilization* to) {
  FAKE_CHECK(device);
  // As on a real card, no answer for one that is cut.
  if (state.GpuNumber(GpuOf(device), "mig") != 0) return kNotSupported;
  to->gpu = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "utilization"));
  for (const fake::Process& p : state.Processes(GpuOf(device))) to->gpu = to->gpu + p.sm > 100 ? 100 : to->gpu + p.sm;
  to->memory = to->gpu / 2;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, uint32_t* count, ProcessInfo* to) {
  FAKE_CHECK(device);
  const auto processes = state.Processes(GpuOf(device));
  const uint32_t room = *count;
  *count = static_cast<uint32_t>(processes.size());
  if (processes.size() > room) return kInsufficientSize;
  for (size_t i = 0; i < processes.size(); ++i) {
    to[i] = {processes[i].pid, processes[i].bytes, processes[i].gpu_instance,
             processes[i].gpu_instance == ~0u ? ~0u : 0};
  }
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetProcessUtilization(Device device, ProcessSample* to, uint32_t* count, uint64_t) {
  FAKE_CHECK(device);
  if (state.GpuNumber(GpuOf(device), "mig") != 0) return kNotSupported;
  const auto processes = state.Processes(GpuOf(device));
  const uint32_t room = *count;
  *count = static_cast<uint32_t>(processes.size());
  if (processes.empty()) return kNotFound;
  if (to == nullptr || processes.size() > room) return kInsufficientSize;
  for (size_t i = 0; i < processes.size(); ++i) to[i] = {processes[i].pid, Now(), processes[i].sm, 0, 0, 0};
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetTotalEnergyConsumption(Device device, uint64_t* to) {
  FAKE_CHECK(device);
  // Grows by `power` milliwatts since the epoch of the machine's clock.
  *to = state.GpuNumber(GpuOf(device), "energy") +
        Now() / 1000 % 1'000'000'000 * state.GpuNumber(GpuOf(device), "power") / 1000;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetPowerUsage(Device device, uint32_t* to) {
  FAKE_CHECK(device);
  *to = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "power"));
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetTemperature(Device device, uint32_t, uint32_t* to) {
  FAKE_CHECK(device);
  *to = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "temperature", 35));
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetTemperatureThreshold(Device device, uint32_t, uint32_t* to) {
  FAKE_CHECK(device);
  *to = 87;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetTotalEccErrors(Device device, uint32_t type, uint32_t, uint64_t* to) {
  FAKE_CHECK(device);
  *to = type == kUncorrected ? state.GpuNumber(GpuOf(device), "ecc_uncorrected")
                             : state.GpuNumber(GpuOf(device), "ecc_corrected");
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetRemappedRows(Device device, uint32_t* corrected, uint32_t* uncorrected,
                                             uint32_t* pending, uint32_t* failed) {
  FAKE_CHECK(device);
  *corrected = *uncorrected = 0;
  *pending = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "remap_pending"));
  *failed = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "remap_failed"));
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  FAKE_CHECK(device);
  *major = static_cast<int>(state.GpuNumber(GpuOf(device), "capability", 9));
  *minor = 0;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetP2PStatus(Device one, Device two, uint32_t index, uint32_t* to) {
  FAKE_CHECK(one);
  FAKE_CHECK(two);
  if (index != kP2pNvlink) return kNotSupported;
  *to = 4;  // not supported
  for (const std::string& other : fake::Split(state.GpuText(GpuOf(one), "nvlink"), ',')) {
    if (::strtoul(other.c_str(), nullptr, 10) == GpuOf(two)) *to = 0;
  }
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetTopologyCommonAncestor(Device one, Device two, uint32_t* to) {
  FAKE_CHECK(one);
  FAKE_CHECK(two);
  const uint32_t a = GpuOf(one), b = GpuOf(two);
  *to = state.GpuNumber(a, "switch", a) == state.GpuNumber(b, "switch", b) ? 20
        : state.GpuNumber(a, "numa") == state.GpuNumber(b, "numa")         ? 40
                                                                           : 50;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetMemoryAffinity(Device device, uint32_t words, unsigned long* to, uint32_t) {
  FAKE_CHECK(device);
  for (uint32_t i = 0; i < words; ++i) to[i] = 0;
  const std::string numa = state.GpuText(GpuOf(device), "numa");
  if (numa.empty()) return kNotSupported;
  to[0] = 1ul << ::strtoul(numa.c_str(), nullptr, 10);
  return kSuccess;
}

// --- MIG

FAKE_EXPORT Return nvmlDeviceGetMigMode(Device device, uint32_t* current, uint32_t* pending) {
  FAKE_CHECK(device);
  if (!Divisible(GpuOf(device))) return kNotSupported;
  *current = *pending = state.GpuNumber(GpuOf(device), "mig") != 0;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Device device, uint32_t* to) {
  FAKE_CHECK(device);
  *to = state.GpuNumber(GpuOf(device), "mig") != 0 ? 7 : 0;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetGpuInstanceProfileInfoV(Device device, uint32_t number, GpuInstanceProfileV3* to) {
  FAKE_CHECK(device);
  if (to->version != Version<GpuInstanceProfileV3>(3)) return kVersionMismatch;
  const Profile* p = ProfileOfNumber(number);
  if (p == nullptr || !Divisible(GpuOf(device))) return kNotSupported;
  *to = {to->version, p->id, p->slices, p->most, p->slices * 16, p->slices, 0, 0, 0, 0, ProfileMib(GpuOf(device), *p),
         "",          0};
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device device, uint32_t id, GpuInstancePlacement* to,
                                                                 uint32_t* count) {
  FAKE_CHECK(device);
  const Profile* p = ProfileOfId(id);
  if (p == nullptr) return kInvalidArgument;
  uint32_t n = 0;
  for (uint32_t s = 0; s < 8; ++s) {
    if ((p->starts >> s & 1) != 0) to[n++] = {s, p->eighths};
  }
  *count = n;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceCreateGpuInstanceWithPlacement(Device device, uint32_t id,
                                                            const GpuInstancePlacement* place, GpuInstance* to) {
  FAKE_CHECK(device);
  const uint32_t gpu = GpuOf(device);
  if (state.GpuNumber(gpu, "mig") == 0) return kNotSupported;
  const Profile* p = ProfileOfId(id);
  if (p == nullptr || place->start > 7 || (p->starts >> place->start & 1) == 0 || place->size != p->eighths)
    return kInvalidArgument;
  Instances instances(state.directory());
  uint32_t same = 0, next = 1;
  for (const Instance& i : instances.all) {
    if (i.gpu != gpu) continue;
    if (place->start < i.start + i.size && i.start < place->start + place->size) return kInsufficientResources;
    same += i.profile == id;
  }
  if (same >= p->most) return kInsufficientResources;
  while (Find(&instances, gpu, next) != nullptr) ++next;
  instances.all.push_back({gpu, next, id, place->start, place->size, false});
  instances.Save();
  *to = Handle(kGiKind, gpu, next);
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetGpuInstances(Device device, uint32_t profile, GpuInstance* to, uint32_t* count) {
  FAKE_CHECK(device);
  if (state.GpuNumber(GpuOf(device), "mig") == 0) return kNotSupported;
  Instances instances(state.directory());
  uint32_t n = 0;
  for (const Instance& i : instances.all) {
    if (i.gpu == GpuOf(device) && i.profile == profile) to[n++] = Handle(kGiKind, i.gpu, i.id);
  }
  *count = n;
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpuInstanceGetInfo(GpuInstance instance, GpuInstanceInfo* to) {
  Instances instances(state.directory());
  const Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kGiKind) return kInvalidArgument;
  *to = {Handle(kGpuKind, i->gpu), i->id, i->profile, {i->start, i->size}};
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpuInstanceDestroy(GpuInstance instance) {
  FAKE_CHECK(Handle(kGpuKind, GpuOf(instance)));
  Instances instances(state.directory());
  Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kGiKind) return kInvalidArgument;
  if (i->computes || InUse(i->gpu, i->id)) return kInUse;
  instances.all.erase(instances.all.begin() + (i - instances.all.data()));
  instances.Save();
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpuInstanceGetComputeInstanceProfileInfo(GpuInstance instance, uint32_t number, uint32_t,
                                                                ComputeInstanceProfile* to) {
  constexpr uint32_t kSlices[] = {1, 2, 3, 4, 7};
  Instances instances(state.directory());
  const Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kGiKind) return kInvalidArgument;
  const Profile* p = ProfileOfId(i->profile);
  if (number >= 5 || p == nullptr || kSlices[number] > p->slices) return kNotSupported;
  *to = {number, kSlices[number], p->slices / kSlices[number], kSlices[number] * 16, 0, 0, 0, 0, 0};
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpuInstanceCreateComputeInstance(GpuInstance instance, uint32_t profile, ComputeInstance* to) {
  Instances instances(state.directory());
  Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kGiKind || profile >= 5) return kInvalidArgument;
  if (i->computes) return kInsufficientResources;
  if (state.Number("crash_before_compute_instance", 0) != 0) ::_exit(77);
  i->computes = true;
  instances.Save();
  *to = Handle(kCiKind, i->gpu, i->id);
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpuInstanceGetComputeInstances(GpuInstance instance, uint32_t profile, ComputeInstance* to,
                                                      uint32_t* count) {
  constexpr uint32_t kSlices[] = {1, 2, 3, 4, 7};
  Instances instances(state.directory());
  const Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kGiKind) return kInvalidArgument;
  const Profile* p = ProfileOfId(i->profile);
  *count = 0;
  if (i->computes && profile < 5 && p != nullptr && kSlices[profile] == p->slices) {
    to[0] = Handle(kCiKind, i->gpu, i->id);
    *count = 1;
  }
  return kSuccess;
}
FAKE_EXPORT Return nvmlComputeInstanceGetInfo_v2(ComputeInstance instance, ComputeInstanceInfo* to) {
  if (KindOf(instance) != kCiKind) return kInvalidArgument;
  *to = {Handle(kGpuKind, GpuOf(instance)), Handle(kGiKind, GpuOf(instance), IdOf(instance)), 0, 0, {0, 0}};
  return kSuccess;
}
FAKE_EXPORT Return nvmlComputeInstanceDestroy(ComputeInstance instance) {
  FAKE_CHECK(Handle(kGpuKind, GpuOf(instance)));
  Instances instances(state.directory());
  Instance* i = Find(&instances, GpuOf(instance), IdOf(instance));
  if (i == nullptr || KindOf(instance) != kCiKind || !i->computes) return kInvalidArgument;
  if (InUse(i->gpu, i->id)) return kInUse;
  i->computes = false;
  instances.Save();
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, uint32_t index, Device* to) {
  FAKE_CHECK(device);
  Instances instances(state.directory());
  for (const Instance& i : instances.all) {
    if (i.gpu != GpuOf(device) || !i.computes || index-- != 0) continue;
    *to = Handle(kMigKind, i.gpu, i.id);
    return kSuccess;
  }
  return kNotFound;
}
FAKE_EXPORT Return nvmlDeviceGetGpuInstanceId(Device device, uint32_t* to) {
  if (KindOf(device) != kMigKind) return kInvalidArgument;
  *to = IdOf(device);
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetComputeInstanceId(Device device, uint32_t* to) {
  if (KindOf(device) != kMigKind) return kInvalidArgument;
  *to = 0;
  return kSuccess;
}

// --- Events

namespace {
struct Set {
  size_t position = static_cast<size_t>(-1);
};
}  // namespace

FAKE_EXPORT Return nvmlEventSetCreate(EventSet* to) {
  *to = new Set;
  return kSuccess;
}
FAKE_EXPORT Return nvmlEventSetFree(EventSet set) {
  delete static_cast<Set*>(set);
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceGetSupportedEventTypes(Device device, uint64_t* to) {
  FAKE_CHECK(device);
  *to = 0xff9f;
  return kSuccess;
}
FAKE_EXPORT Return nvmlDeviceRegisterEvents(Device device, uint64_t, EventSet set) {
  FAKE_CHECK(device);
  Set* events = static_cast<Set*>(set);
  if (events->position == static_cast<size_t>(-1)) state.Xids(&events->position);
  return kSuccess;
}
FAKE_EXPORT Return nvmlEventSetWait_v2(EventSet set, EventData* to, uint32_t timeout_ms) {
  const uint64_t end = Now() + timeout_ms * 1000ull;
  for (;;) {
    // Not state.Refresh(): this is called on a thread of its own.
    const std::vector<uint32_t> event = state.Xids(&static_cast<Set*>(set)->position);
    if (event.size() == 2) {
      *to = {Handle(kGpuKind, event[0]), kEventXid, event[1], ~0u, ~0u};
      return kSuccess;
    }
    if (Now() >= end) return kTimeout;
    ::usleep(10'000);
  }
}

// --- GPM

namespace {
struct Sample {
  double sm = 0;
};
}  // namespace

FAKE_EXPORT Return nvmlGpmQueryDeviceSupport(Device device, GpmSupport* to) {
  FAKE_CHECK(device);
  if (to->version != 1) return kVersionMismatch;
  to->supported = state.GpuNumber(GpuOf(device), "gpm", 1) != 0;
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpmSampleAlloc(GpmSample* to) {
  *to = new Sample;
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpmSampleFree(GpmSample sample) {
  delete static_cast<Sample*>(sample);
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpmSampleGet(Device device, GpmSample sample) {
  FAKE_CHECK(device);
  Utilization u{};
  u.gpu = static_cast<uint32_t>(state.GpuNumber(GpuOf(device), "utilization"));
  for (const fake::Process& p : state.Processes(GpuOf(device))) u.gpu = u.gpu + p.sm > 100 ? 100 : u.gpu + p.sm;
  static_cast<Sample*>(sample)->sm = u.gpu * 0.9;
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpmMigSampleGet(Device device, uint32_t instance, GpmSample sample) {
  FAKE_CHECK(device);
  double sm = 0;
  for (const fake::Process& p : state.Processes(GpuOf(device))) sm += p.gpu_instance == instance ? p.sm : 0;
  static_cast<Sample*>(sample)->sm = sm > 100 ? 100 : sm;
  return kSuccess;
}
FAKE_EXPORT Return nvmlGpmMetricsGet(GpmMetrics* to) {
  if (to->version != 1) return kVersionMismatch;
  for (uint32_t i = 0; i < to->count; ++i) {
    to->metrics[i].result = to->metrics[i].id == kGpmSmUtilization ? kSuccess : kNotSupported;
    to->metrics[i].value = static_cast<Sample*>(to->second)->sm;
  }
  return kSuccess;
}
