// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/injection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/files.h"
#include "gpu/inject/ld_cache.h"

namespace vrun::gpu {
namespace {

constexpr uint32_t kControlMinor = 255;
// nvidia-cap1 and 2 configure and watch MIG of all GPUs: the administrator's.
constexpr uint32_t kLastAdministratorCap = 2;
constexpr size_t kMostProcFile = 64u << 10;
constexpr char kProcInside[] = "/proc/driver/nvidia";
constexpr char kOpenclIcd[] = "etc/OpenCL/vendors/nvidia.icd";
constexpr char kVulkanIcd[] = "share/vulkan/icd.d/nvidia_icd.json";
constexpr char kEglIcd[] = "share/glvnd/egl_vendor.d/10_nvidia.json";
constexpr char kOptixTable[] = "share/nvidia/nvoptix.bin";

std::string Inside(std::string_view bundle_path) { return fmt::format("{}/{}", kBundleInside, bundle_path); }

void AddDevice(std::string path, uint32_t major, uint32_t minor, uint32_t mode, v1::GpuInjection* injection) {
  v1::GpuInjection::Device* device = injection->add_devices();
  device->set_path(std::move(path));
  device->set_major(major);
  device->set_minor(minor);
  device->set_mode(mode);
}

v1::GpuInjection::Mount* AddMount(std::string source, std::string target, v1::GpuInjection* injection) {
  v1::GpuInjection::Mount* mount = injection->add_mounts();
  mount->set_source(std::move(source));
  mount->set_target(std::move(target));
  mount->set_read_only(true);
  return mount;
}

void AddFile(std::string path, std::string content, uint32_t mode, bool optional, v1::GpuInjection* injection) {
  v1::GpuInjection::File* file = injection->add_files();
  file->set_path(std::move(path));
  file->set_content(std::move(content));
  file->set_mode(mode);
  file->set_optional(optional);
}

// "00000000:1B:00.0", as NVML writes it, is the directory 0000:1b:00.0 of /proc/driver/nvidia/gpus.
std::string ProcDirectoryOf(const std::string& pci_bus_id) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (std::sscanf(pci_bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return "";
  char text[48];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text;
}

// With ModifyDeviceFiles the driver's library creates missing nodes of GPUs, if the job may mknod.
std::string MaskedParams(const std::string& params) {
  constexpr std::string_view kKey = "ModifyDeviceFiles:";
  std::istringstream lines(params);
  std::string text;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    const bool key = line.starts_with(kKey);
    found = found || key;
    text += key ? fmt::format("{} 0\n", kKey) : line + "\n";
  }
  return found ? text : text + fmt::format("{} 0\n", kKey);
}

std::string JoinNumbers(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + std::to_string(i);
  return text;
}

std::string_view ValueOf(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& variable : environment) {
    const std::string_view view = variable;
    if (view.size() > name.size() && view[name.size()] == '=' && view.starts_with(name)) {
      return view.substr(name.size() + 1);
    }
  }
  return {};
}

class Maker {
 public:
  explicit Maker(const InjectionRequest& request) : request_(request), allotment_(*request.allotment) {}

  Result<v1::GpuInjection> Make() {
    VRUN_TRY(Check());
    AddDevices();
    AddMount(request_.bundle->directory, kBundleInside, &injection_);
    AddProc();
    // Nix patches programs so that they look there. Elsewhere nobody does.
    AddLink("/run/opengl-driver/lib", kLibrariesInside);
    AddEnvironment();
    return std::move(injection_);
  }

 private:
  Status Check() const {
    const size_t count = request_.gpus->size();
    if (allotment_.gpus.empty()) return Error(Code::kInvalid, "an allotment of no GPU");
    for (const uint32_t number : allotment_.gpus) {
      if (number >= count) {
        return Error(Code::kInvalid, "GPU " + std::to_string(number) + " of a node with " + std::to_string(count));
      }
    }
    const int parts = (allotment_.mig ? 1 : 0) + (allotment_.mps ? 1 : 0) + (allotment_.time_slice ? 1 : 0);
    if (parts > 1) return Error(Code::kInvalid, "an allotment of two kinds of parts of a GPU");
    if (parts == 1 && allotment_.gpus.size() != 1)
      return Error(Code::kInvalid, "an allotment of parts of several GPUs");
    if (request_.majors.nvidia_uvm == 0) {
      return Error(Code::kUnavailable,
                   "nvidia-uvm is not in /proc/devices, so CUDA cannot start: load it: modprobe nvidia-uvm");
    }
    if (allotment_.mig) return CheckMig(*allotment_.mig);
    if (allotment_.mps && !allotment_.mps->pipe_directory.starts_with('/')) {
      return Error(Code::kInvalid, "an MPS share without the directory of its daemon");
    }
    return {};
  }

  Status CheckMig(const MigInstance& mig) const {
    if (request_.majors.nvidia_caps == 0) {
      return Error(Code::kUnavailable, "nvidia-caps is not in /proc/devices: this driver has no MIG");
    }
    if (mig.gpu_instance_cap <= kLastAdministratorCap || mig.compute_instance_cap <= kLastAdministratorCap ||
        mig.gpu_instance_cap == mig.compute_instance_cap) {
      return Error(Code::kInvalid, "a MIG instance with capabilities " + std::to_string(mig.gpu_instance_cap) +
                                       " and " + std::to_string(mig.compute_instance_cap));
    }
    return {};
  }

  const v1::Gpu& gpu(size_t i) const { return (*request_.gpus)[allotment_.gpus[i]]; }

  void AddDevices() {
    constexpr uint32_t kAll = 0666, kRead = 0444;
    for (size_t i = 0; i < allotment_.gpus.size(); ++i) {
      AddDevice("nvidia" + std::to_string(gpu(i).minor()), request_.majors.nvidia, gpu(i).minor(), kAll, &injection_);
    }
    AddDevice("nvidiactl", request_.majors.nvidia, kControlMinor, kAll, &injection_);
    AddDevice("nvidia-uvm", request_.majors.nvidia_uvm, 0, kAll, &injection_);
    if (!allotment_.mig) return;
    for (const uint32_t cap : {allotment_.mig->gpu_instance_cap, allotment_.mig->compute_instance_cap}) {
      AddDevice("nvidia-caps/nvidia-cap" + std::to_string(cap), request_.majors.nvidia_caps, cap, kRead, &injection_);
    }
  }

  // The real directory names all GPUs of the node. Optional: a driver may have none.
  void AddProc() {
    AddMount("", kProcInside, &injection_)->set_optional(true);
    const auto add = [&](const std::string& name, const std::string& content) {
      AddFile(fmt::format("{}/{}", kProcInside, name), content, 0444, true, &injection_);
    };
    add("params", MaskedParams(request_.proc.params));
    add("version", request_.proc.version);
    add("registry", request_.proc.registry);
    for (size_t i = 0; i < allotment_.gpus.size(); ++i) {
      const std::string directory = ProcDirectoryOf(gpu(i).pci_bus_id());
      const uint32_t number = allotment_.gpus[i];
      if (directory.empty() || number >= request_.gpu_information.size()) continue;
      add("gpus/" + directory + "/information", request_.gpu_information[number]);
    }
  }

  void AddLink(const char* path, const char* target) {
    v1::GpuInjection::Link* link = injection_.add_links();
    link->set_path(path);
    link->set_target(target);
  }

  // The numbers are those inside, where the device filter leaves only the pod's own GPUs to count.
  void AddEnvironment() {
    std::string uuids;
    for (size_t i = 0; i < allotment_.gpus.size(); ++i) uuids += (i == 0 ? "" : ",") + gpu(i).uuid();
    std::string visible = JoinNumbers(allotment_.gpus.size());
    if (allotment_.mig && !allotment_.mig->uuid.empty()) uuids = visible = allotment_.mig->uuid;
    injection_.add_environment("CUDA_VISIBLE_DEVICES=" + visible);
    injection_.add_environment("NVIDIA_VISIBLE_DEVICES=" + uuids);
    if (allotment_.mps) AddMps(*allotment_.mps);
    if (!request_.bundle->programs.empty()) injection_.add_prepend("PATH=" + Inside("bin"));
    injection_.add_prepend(fmt::format("LD_LIBRARY_PATH={}", kLibrariesInside));
  }

  // The daemon enforces the limits (decision 32). The variables only make programs that ask see them.
  void AddMps(const MpsShare& mps) {
    AddMount(mps.pipe_directory, kMpsPipesInside, &injection_)->set_read_only(false);
    injection_.add_environment(fmt::format("CUDA_MPS_PIPE_DIRECTORY={}", kMpsPipesInside));
    injection_.add_environment("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + std::to_string(mps.percentage));
    if (mps.memory_bytes == 0) return;
    injection_.add_environment("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=" + std::to_string(mps.memory_bytes >> 20) + "M");
  }

  const InjectionRequest& request_;
  const Allotment& allotment_;
  v1::GpuInjection injection_;
};

// --- what depends on the root ----------------------------------------------------------------------------------------

// A cache with the bundle's libraries; of `root` unless it has none or a damaged one, which the loader ignores too.
std::string CacheFor(const Bundle& bundle, const std::string& root) {
  LdCache cache;
  if (Result<LdCache> own = ParseLdCache(root)) cache = *std::move(own);
  std::vector<std::string> paths;
  paths.reserve(bundle.libraries.size());
  for (const BundleLibrary& library : bundle.libraries) {
    paths.push_back(fmt::format("{}/{}", kLibrariesInside, library.name));
    SetLdCacheEntry(&cache, library.name, paths.back());
  }
  return FormatLdCache(std::move(cache));
}

void AddLoaderFiles(const Bundle& bundle, const RootFacts& root, v1::GpuInjection* injection) {
  constexpr char kCache[] = "/etc/ld.so.cache";
  if (root.ld_cache) {
    AddFile(kCache, CacheFor(bundle, *root.ld_cache), 0644, true, injection);
  } else if (root.glibc && root.frozen) {
    AddFile(kCache, CacheFor(bundle, ""), 0644, false, injection);
  }
  if (root.musl && (root.musl_path || root.frozen)) {
    AddFile(MuslPathFile(), MuslPathWith(root.musl_path, kLibrariesInside), 0644, root.musl_path.has_value(),
            injection);
  }
}

void AddShadows(const Bundle& bundle, const RootFacts& root, v1::GpuInjection* injection) {
  for (const StaleFile& stale : root.stale) {
    std::string source;
    for (const BundleLibrary& library : bundle.libraries) {
      if (library.name == stale.name) source = "/lib64/" + library.target;
    }
    for (const std::string& program : bundle.programs) {
      if (program == stale.name) source = "/bin/" + program;
    }
    if (!source.empty()) AddMount(bundle.directory + source, stale.path, injection)->set_optional(true);
  }
}

// The loaders of OpenCL, Vulkan and EGL look in directories of the root, but variables name further ones.
void AddGraphics(const Bundle& bundle, const RootFacts& root, const std::vector<std::string>& environment,
                 v1::GpuInjection* injection) {
  const auto unset = [&](const char* name) { return ValueOf(environment, name).empty(); };
  // There is no variable that adds a directory, so the root's other implementations of OpenCL are hidden.
  if (bundle.Has(kOpenclIcd) && !root.opencl_icd && unset("OCL_ICD_VENDORS") && unset("OPENCL_VENDOR_PATH")) {
    injection->add_environment("OCL_ICD_VENDORS=" + Inside("etc/OpenCL/vendors"));
  }
  if (bundle.Has(kEglIcd) && unset("__EGL_VENDOR_LIBRARY_DIRS") && unset("__EGL_VENDOR_LIBRARY_FILENAMES")) {
    injection->add_environment("__EGL_VENDOR_LIBRARY_DIRS=" + Inside("share/glvnd/egl_vendor.d") +
                               ":/etc/glvnd/egl_vendor.d:/usr/share/glvnd/egl_vendor.d");
  }
  if (bundle.Has(kVulkanIcd)) {
    const std::string_view own = ValueOf(environment, "XDG_DATA_DIRS");
    injection->add_environment("XDG_DATA_DIRS=" + Inside("share") + ":" +
                               (own.empty() ? "/usr/local/share:/usr/share" : std::string(own)));
  }
  if (bundle.Has(kOptixTable)) {
    AddMount(bundle.directory + "/" + kOptixTable, "/usr/share/nvidia/nvoptix.bin", injection)->set_optional(true);
  }
}

// A user who put CUDA's compatibility library in front wants it before the node's libcuda.
void KeepCompatFirst(const std::vector<std::string>& environment, v1::GpuInjection* injection) {
  const std::string own(ValueOf(environment, "LD_LIBRARY_PATH"));
  const std::string first = own.substr(0, own.find(':'));
  if (!first.ends_with("/compat") && !first.ends_with("/cuda-compat")) return;
  const std::string ours = fmt::format("LD_LIBRARY_PATH={}", kLibrariesInside);
  auto* prepend = injection->mutable_prepend();
  prepend->erase(std::remove(prepend->begin(), prepend->end(), ours), prepend->end());
  injection->add_environment(fmt::format("LD_LIBRARY_PATH={}:{}{}", first, kLibrariesInside, own.substr(first.size())));
}

}  // namespace

DeviceMajors ParseDeviceMajors(std::string_view text) {
  DeviceMajors majors;
  const size_t end = text.find("Block devices");
  std::istringstream lines{std::string(text.substr(0, end))};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    uint32_t number = 0;
    std::string name;
    if (!(words >> number >> name)) continue;
    if (name == "nvidia" || name == "nvidia-frontend") majors.nvidia = number;
    if (name == "nvidia-uvm") majors.nvidia_uvm = number;
    if (name == "nvidia-caps") majors.nvidia_caps = number;
  }
  return majors;
}

DriverProc ReadDriverProc(const std::string& directory) {
  const auto read = [&](const char* name) {
    Result<std::string> text = ReadFile(directory + "/" + name, kMostProcFile);
    return text ? *std::move(text) : std::string();
  };
  return {.version = read("version"), .registry = read("registry"), .params = read("params")};
}

Result<v1::GpuInjection> MakeInjection(const InjectionRequest& request) { return Maker(request).Make(); }

void AddForRoot(const Bundle& bundle, const RootFacts& root, const std::vector<std::string>& environment,
                v1::GpuInjection* injection) {
  AddLoaderFiles(bundle, root, injection);
  AddShadows(bundle, root, injection);
  AddGraphics(bundle, root, environment, injection);
  KeepCompatFirst(environment, injection);
}

std::string BundleDirectory(const v1::GpuInjection& injection) {
  for (const v1::GpuInjection::Mount& mount : injection.mounts()) {
    if (mount.target() == kBundleInside) return mount.source();
  }
  return "";
}

Status CompleteForRoot(int root, bool frozen, const std::vector<std::string>& environment,
                       v1::GpuInjection* injection) {
  const std::string directory = BundleDirectory(*injection);
  if (directory.empty()) return {};
  VRUN_ASSIGN(const Bundle bundle, Bundle::Read(directory));
  AddForRoot(bundle, ReadRootFacts(root, frozen, bundle, environment), environment, injection);
  return {};
}

}  // namespace vrun::gpu
