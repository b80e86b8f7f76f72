// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <regex>
#include <set>

#include "base/escape.h"
#include "base/files.h"
#include "gpu/inject/elf_soname.h"
#include "gpu/inject/ld_cache.h"
#include "gpu/inject/root_dir.h"
#include "gpu/inject/trusted.h"

namespace vrun::gpu {
namespace {

#if defined(__x86_64__)
constexpr char kMultiarch[] = "x86_64-linux-gnu";
#elif defined(__aarch64__)
constexpr char kMultiarch[] = "aarch64-linux-gnu";
#endif

// Distributions, NVIDIA's installer, Debian's alternatives, GKE and others with an image of the driver, NixOS.
std::vector<std::string> UsualDirectories() {
  const std::string multiarch = std::string("usr/lib/") + kMultiarch;
  return {multiarch,
          multiarch + "/nvidia/current",
          "usr/lib64",
          "usr/lib",
          "usr/local/nvidia/lib64",
          "usr/local/nvidia/lib",
          "run/opengl-driver/lib"};
}
constexpr const char* kProgramDirectories[] = {"usr/bin", "usr/local/nvidia/bin", "usr/lib/nvidia/current",
                                               "run/opengl-driver/bin"};
constexpr const char* kPrograms[] = {"nvidia-smi", "nvidia-debugdump"};
constexpr const char* kSockets[] = {"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"};

// What is not named here is for compute: new parts of the driver mostly are, and a job without one of them fails.
constexpr std::string_view kVideo[] = {"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libnvidia-fbc",
                                       "libvdpau_nvidia"};
constexpr std::string_view kGraphics[] = {
    "libGL",          "libEGL_nvidia",     "libnvidia-eglcore",   "libnvidia-glcore", "libnvidia-glsi", "libnvidia-tls",
    "libnvidia-glvk", "libnvidia-rtcore",  "libnvidia-ngx",       "libnvoptix",       "libnvidia-egl",  "libnvidia-gtk",
    "libnvidia-api",  "libnvidia-wayland", "libnvidia-vksc-core", "libnvidia-present"};

DriverUse UseOf(std::string_view name) {
  const auto any = [&](auto& prefixes) {
    return std::any_of(std::begin(prefixes), std::end(prefixes), [&](auto p) { return name.starts_with(p); });
  };
  return any(kVideo) ? DriverUse::kVideo : any(kGraphics) ? DriverUse::kGraphics : DriverUse::kCompute;
}

bool IsVersion(std::string_view text) {
  static const std::regex pattern(R"(\d{2,4}(\.\d{1,4}){1,3})");
  return text.size() <= 24 && std::regex_match(text.begin(), text.end(), pattern);
}

// Libraries of the driver's package that have another number than the driver.
bool HasOwnVersion(const std::string& name) {
  static const std::regex pattern(
      R"(libnvidia-nvvm70\.so\.[0-9.]+|libnvidia-egl-(gbm|wayland|wayland2|xcb|xlib)\.so\.\d+\.\d+[0-9.]*)"
      R"(|libnvidia-api\.so\.\d+)");
  return std::regex_match(name, pattern);
}

bool Newer(const std::string& a, const std::string& b) { return CompareLdCacheNames(a, b) > 0; }

class Search {
 public:
  explicit Search(const DriverSearch& search) : search_(search) {}

  Result<Driver> Find() {
    root_.Reset(::open(search_.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root_) return ErrnoError("open the driver's root " + Escape(search_.root));
    FindDirectories();
    VRUN_TRY(ChooseVersion());
    for (const Directory& directory : directories_) VRUN_TRY(AddLibraries(directory));
    VRUN_TRY(AddPrograms());
    AddLoaderFiles();
    for (const char* socket : kSockets) {
      struct stat st;
      if (OpenBelow(root_.get(), socket, &st) && S_ISSOCK(st.st_mode)) driver_.sockets.push_back(socket);
    }
    return std::move(driver_);
  }

 private:
  struct Directory {
    UniqueFd fd;
    std::vector<std::string> names;
  };

  void FindDirectories() {
    std::vector<std::string> paths = search_.directories;
    if (paths.empty()) {
      if (const Result<std::string> bytes = ReadBelow(root_.get(), "etc/ld.so.cache", kMostLdCacheBytes)) {
        if (const Result<LdCache> cache = ParseLdCache(*bytes)) {
          for (const LdCacheEntry& entry : cache->entries) {
            const bool ours = entry.flags == kLdCacheLibrary && entry.path.rfind('/') != std::string_view::npos;
            if (!ours || (entry.name != "libcuda.so.1" && entry.name != "libnvidia-ml.so.1")) continue;
            paths.emplace_back(entry.path.substr(0, entry.path.rfind('/')));
          }
        }
      }
      for (std::string& path : UsualDirectories()) paths.push_back(std::move(path));
    }
    std::set<std::pair<dev_t, ino_t>> known;
    const auto add = [&](const std::string& path) {
      struct stat st;
      Result<UniqueFd> fd = OpenBelow(root_.get(), path, &st);
      if (!fd || !S_ISDIR(st.st_mode) || !known.emplace(st.st_dev, st.st_ino).second) return;
      Result<std::vector<std::string>> names = NamesIn(fd->get());
      if (names) directories_.push_back({*std::move(fd), *std::move(names)});
    };
    for (const std::string& path : paths) {
      add(path);
      add(path + "/vdpau");
    }
  }

  // Those of libcuda, as the kernel module has it if that is known.
  Status ChooseVersion() {
    std::set<std::string> found;
    constexpr std::string_view kPrefix = "libcuda.so.";
    for (const Directory& directory : directories_) {
      for (const std::string& name : directory.names) {
        if (name.starts_with(kPrefix) && IsVersion(name.substr(kPrefix.size())) && IsFile(directory, name)) {
          found.insert(name.substr(kPrefix.size()));
        }
      }
    }
    if (found.empty()) {
      return Error(Code::kNotFound, "no GPU driver: no libcuda.so.<version> below " + Escape(search_.root) +
                                        ": install it, or name its place with --driver-root");
    }
    driver_.version = *std::max_element(found.begin(), found.end(), [](auto& a, auto& b) { return Newer(b, a); });
    if (search_.kernel_version.empty()) return {};
    if (found.count(search_.kernel_version) == 0) {
      return Error(Code::kNotFound, "the kernel has driver " + search_.kernel_version + ", its libraries are of " +
                                        driver_.version + ": reboot, or install libraries of the kernel's version");
    }
    driver_.version = search_.kernel_version;
    return {};
  }

  static bool IsFile(const Directory& directory, const std::string& name) {
    struct stat st;
    return ::fstatat(directory.fd.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
  }

  Status AddLibraries(const Directory& directory) {
    for (const std::string& name : directory.names) {
      const bool versioned = name.starts_with("lib") && name.ends_with(".so." + driver_.version);
      if ((!versioned && !HasOwnVersion(name)) || !IsFile(directory, name) || Has("lib64/" + name)) continue;
      const UniqueFd file(::openat(directory.fd.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (!file) return ErrnoError("open " + Escape(name));
      const std::optional<std::string> soname = ElfSoname(file.get());
      if (!soname) continue;  // of another machine: 32-bit libraries
      VRUN_ASSIGN(std::string source, PathOf(file.get()));
      // Whoever could change it could run code in every pod, and in the agent, which loads NVML.
      VRUN_TRY(CheckOnlyRootWrites(source));
      driver_.files.push_back({std::move(source), "lib64/" + name, Plain(*soname) ? *soname : "", UseOf(name)});
    }
    return {};
  }

  Status AddPrograms() {
    for (const char* program : kPrograms) {
      for (const char* directory : kProgramDirectories) {
        struct stat st;
        const Result<UniqueFd> fd = OpenBelow(root_.get(), std::string(directory) + "/" + program, &st);
        if (!fd || !S_ISREG(st.st_mode) || (st.st_mode & 0111) == 0) continue;
        VRUN_ASSIGN(std::string source, PathOf(fd->get()));
        VRUN_TRY(CheckOnlyRootWrites(source));
        driver_.files.push_back({std::move(source), std::string("bin/") + program, ""});
        break;
      }
    }
    return {};
  }

  // What tells the loaders of OpenCL, Vulkan and EGL which library to load. The driver's own files may be missing (they
  // are elsewhere in some packages) or name a directory of the node, so these are ours. OptiX reads a table.
  void AddLoaderFiles() {
    const auto text = [&](const char* name, std::string content, DriverUse use) {
      driver_.files.push_back({"", name, "", use, std::move(content)});
    };
    const auto json = [](const std::string& library, const std::string& more) {
      return "{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"" + library + "\"" + more + "}}\n";
    };
    if (HasSoname("libnvidia-opencl.so.1")) {
      text("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n", DriverUse::kCompute);
    }
    if (HasSoname("libGLX_nvidia.so.0")) {
      text("share/vulkan/icd.d/nvidia_icd.json",
           json("libGLX_nvidia.so.0", ", \"api_version\": \"" + VulkanVersion() + "\""), DriverUse::kGraphics);
    }
    if (HasSoname("libEGL_nvidia.so.0")) {
      text("share/glvnd/egl_vendor.d/10_nvidia.json", json("libEGL_nvidia.so.0", ""), DriverUse::kGraphics);
    }
    struct stat st;
    const Result<UniqueFd> table = OpenBelow(root_.get(), "usr/share/nvidia/nvoptix.bin", &st);
    if (!table || !S_ISREG(st.st_mode)) return;
    Result<std::string> source = PathOf(table->get());
    if (!source || !CheckOnlyRootWrites(*source)) return;
    driver_.files.push_back({*std::move(source), "share/nvidia/nvoptix.bin", "", DriverUse::kGraphics});
  }

  std::string VulkanVersion() const {
    static const std::regex pattern(R"re("api_version"\s*:\s*"(\d+\.\d+(\.\d+)?)")re");
    for (const char* path : {"usr/share/vulkan/icd.d/nvidia_icd.json", "etc/vulkan/icd.d/nvidia_icd.json"}) {
      const Result<std::string> text = ReadBelow(root_.get(), path, 1 << 16);
      std::smatch match;
      if (text && std::regex_search(*text, match, pattern)) return match[1];
    }
    return "1.3.0";
  }

  static bool Plain(const std::string& name) {
    return !name.empty() && name.find_first_of("/ \n") == std::string::npos;
  }
  bool Has(const std::string& name) const {
    return std::any_of(driver_.files.begin(), driver_.files.end(), [&](auto& f) { return f.name == name; });
  }
  bool HasSoname(const std::string& name) const {
    return std::any_of(driver_.files.begin(), driver_.files.end(), [&](auto& f) { return f.soname == name; });
  }

  const DriverSearch& search_;
  UniqueFd root_;
  std::vector<Directory> directories_;
  Driver driver_;
};

}  // namespace

std::string KernelDriverVersion(std::string_view text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...": the first number of that
  // form. The next lines name the compiler.
  text = text.substr(0, text.find('\n'));
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return "";
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(" \t"));
    if (IsVersion(word)) return std::string(word);
    text.remove_prefix(word.size());
  }
  return "";
}

Result<Driver> FindDriver(const DriverSearch& search) { return Search(search).Find(); }

}  // namespace vrun::gpu
