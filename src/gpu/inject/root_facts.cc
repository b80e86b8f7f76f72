// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/root_facts.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "gpu/inject/ld_cache.h"
#include "gpu/inject/root_dir.h"

namespace vrun::gpu {
namespace {

#if defined(__x86_64__)
constexpr char kGlibcLoader[] = "/lib64/ld-linux-x86-64.so.2";
constexpr char kMuslLoader[] = "/lib/ld-musl-x86_64.so.1";
constexpr const char* kDefaultDirectories[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"};
#elif defined(__aarch64__)
constexpr char kGlibcLoader[] = "/lib/ld-linux-aarch64.so.1";
constexpr char kMuslLoader[] = "/lib/ld-musl-aarch64.so.1";
constexpr const char* kDefaultDirectories[] = {"/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"};
#endif

constexpr size_t kMostMuslPath = 64u << 10;
// Lookups in lazy views cost round trips. A user's paths beyond these are not looked at.
constexpr size_t kMostDirectories = 12;
constexpr size_t kMostStale = 64;
// What programs open in directories that no cache names. All other libraries of the driver are opened by these two.
constexpr const char* kEntryPoints[] = {"libcuda.so.1", "libnvidia-ml.so.1"};

std::vector<std::string> Split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t colon = list.find(':');
    if (colon != 0) parts.emplace_back(list.substr(0, colon));
    list.remove_prefix(colon == std::string_view::npos ? list.size() : colon + 1);
  }
  return parts;
}

// CUDA's forward compatibility package: newer than the driver on purpose, and used only by who names it.
bool IsCompat(std::string_view directory) {
  return directory.ends_with("/compat") || directory.ends_with("/cuda-compat");
}

class Reader {
 public:
  Reader(int root, bool frozen, const Bundle& bundle, const std::vector<std::string>& environment)
      : root_(root), bundle_(bundle), environment_(environment) {
    facts_.frozen = frozen;
  }

  RootFacts Read() {
    if (Result<std::string> bytes = ReadBelow(root_, "/etc/ld.so.cache", kMostLdCacheBytes)) {
      facts_.ld_cache = *std::move(bytes);
    }
    // Who has the cache has glibc: one lookup less.
    facts_.glibc = facts_.ld_cache || OpenBelow(root_, kGlibcLoader);
    facts_.musl = OpenBelow(root_, kMuslLoader).has_value();
    if (facts_.musl) {
      if (Result<std::string> bytes = ReadBelow(root_, MuslPathFile(), kMostMuslPath)) {
        facts_.musl_path = *std::move(bytes);
      }
    }
    if (bundle_.Has("etc/OpenCL/vendors/nvidia.icd")) {
      facts_.opencl_icd = OpenBelow(root_, "/etc/OpenCL/vendors/nvidia.icd").has_value();
    }
    FindStaleInCache();
    for (const std::string& directory : OtherDirectories()) {
      for (const char* name : kEntryPoints) AddStale(directory + "/" + name, name);
    }
    for (const std::string& program : bundle_.programs) AddStale("/usr/bin/" + program, program);
    return std::move(facts_);
  }

 private:
  void FindStaleInCache() {
    if (!facts_.ld_cache) return;
    const Result<LdCache> cache = ParseLdCache(*facts_.ld_cache);
    if (!cache) return;
    for (const LdCacheEntry& entry : cache->entries) {
      if (entry.flags != kLdCacheLibrary || !entry.path.starts_with('/')) continue;
      const bool ours = std::any_of(bundle_.libraries.begin(), bundle_.libraries.end(),
                                    [&](const BundleLibrary& library) { return library.name == entry.name; });
      if (ours) AddStale(std::string(entry.path), std::string(entry.name));
    }
  }

  // Where loaders look without a cache: programs with a RPATH of their own environment (conda, and whoever linked
  // against the stub library of the CUDA toolkit and keeps it in the RPATH), LD_LIBRARY_PATH. musl has no cache, and
  // some roots of glibc have none.
  std::vector<std::string> OtherDirectories() const {
    std::vector<std::string> found;
    const auto add = [&](const std::string& directory) {
      const bool known = std::find(found.begin(), found.end(), directory) != found.end();
      if (directory.starts_with('/') && !known && found.size() < kMostDirectories) found.push_back(directory);
    };
    for (const std::string& variable : environment_) {
      constexpr std::string_view kLibraries = "LD_LIBRARY_PATH=", kPath = "PATH=", kConda = "CONDA_PREFIX=";
      if (variable.starts_with(kLibraries)) {
        for (const std::string& directory : Split(variable.substr(kLibraries.size()))) add(directory);
      } else if (variable.starts_with(kConda)) {
        add(variable.substr(kConda.size()) + "/lib");
        add(variable.substr(kConda.size()) + "/lib/stubs");
      } else if (variable.starts_with(kPath)) {
        for (std::string directory : Split(variable.substr(kPath.size()))) {
          if (!directory.ends_with("/bin") || IsSystem(directory)) continue;
          add(directory.substr(0, directory.size() - 3) + "lib");
        }
      }
    }
    if (!facts_.ld_cache && facts_.glibc) {
      for (const char* directory : kDefaultDirectories) add(directory);
    }
    if (facts_.musl) {
      for (const std::string& directory : MuslDirectories(facts_.musl_path)) add(directory);
    }
    return found;
  }

  static bool IsSystem(std::string_view directory) {
    return directory == "/bin" || directory == "/usr/bin" || directory == "/usr/local/bin";
  }

  void AddStale(const std::string& path, const std::string& name) {
    if (facts_.stale.size() >= kMostStale || IsCompat(path.substr(0, path.rfind('/')))) return;
    struct stat st;
    if (!OpenBelow(root_, path, &st) || !S_ISREG(st.st_mode)) return;
    // libcuda.so.1 and libcuda.so are one file.
    if (seen_.emplace(st.st_dev, st.st_ino).second) facts_.stale.push_back({path, name});
  }

  const int root_;
  const Bundle& bundle_;
  const std::vector<std::string>& environment_;
  std::set<std::pair<dev_t, ino_t>> seen_;
  RootFacts facts_;
};

}  // namespace

const char* MuslPathFile() {
#if defined(__x86_64__)
  return "/etc/ld-musl-x86_64.path";
#elif defined(__aarch64__)
  return "/etc/ld-musl-aarch64.path";
#endif
}

RootFacts ReadRootFacts(int root, bool frozen, const Bundle& bundle, const std::vector<std::string>& environment) {
  return Reader(root, frozen, bundle, environment).Read();
}

}  // namespace vrun::gpu
