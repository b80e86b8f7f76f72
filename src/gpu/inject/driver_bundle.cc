// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/driver_bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/escape.h"
#include "base/files.h"
#include "base/hash/digest.h"
#include "base/io/copy_content.h"
#include "gpu/inject/root_dir.h"

namespace vrun::gpu {
namespace {

constexpr char kListFile[] = "/list";
constexpr char kFirstLine[] = "vrun driver bundle 1";
constexpr size_t kMostList = 1 << 20;

// Names that programs open although no library has them as its SONAME, and what they stand for.
struct Alias {
  const char* name;
  const char* soname;
};
constexpr Alias kAliases[] = {{"libcuda.so", "libcuda.so.1"},
                              {"libnvidia-ml.so", "libnvidia-ml.so.1"},
                              {"libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"},
                              {"libGLX_indirect.so.0", "libGLX_nvidia.so.0"}};

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Changes with the driver's files, also if a driver of the same version is installed again.
Result<std::string> Identity(const Driver& driver, const std::set<DriverUse>& uses) {
  std::string text = std::string(kFirstLine) + "\n" + driver.version + "\n";
  for (const DriverUse use : uses) text += std::to_string(static_cast<int>(use)) + " ";
  for (const DriverFile& file : driver.files) {
    text += "\n" + file.name + " " + file.content;
    if (file.source.empty()) continue;
    struct stat st;
    if (::stat(file.source.c_str(), &st) != 0) return ErrnoError("stat " + Escape(file.source));
    text += file.source + " " + std::to_string(st.st_dev) + " " + std::to_string(st.st_ino) + " " +
            std::to_string(st.st_size) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
            std::to_string(st.st_mtim.tv_nsec);
  }
  constexpr size_t kDigits = 12;
  return driver.version + "-" + Sha256(text).Hex().substr(0, kDigits);
}

std::vector<BundleLibrary> Libraries(const std::vector<DriverFile>& files) {
  std::vector<BundleLibrary> libraries;
  const auto add = [&](const std::string& name, const std::string& target) {
    const auto same = [&](const BundleLibrary& other) { return other.name == name; };
    if (std::none_of(libraries.begin(), libraries.end(), same)) libraries.push_back({name, target});
  };
  for (const DriverFile& file : files) {
    if (!file.name.starts_with("lib64/")) continue;
    add(file.soname.empty() ? BaseName(file.name) : file.soname, BaseName(file.name));
  }
  for (const Alias& alias : kAliases) {
    const auto of = std::find_if(libraries.begin(), libraries.end(), [&](auto& l) { return l.name == alias.soname; });
    if (of != libraries.end()) add(alias.name, std::string(of->target));
  }
  return libraries;
}

// A copy is synced, because the directory is only renamed when it is complete: after a crash it must not be there
// without its content.
Status CopyFile(const DriverFile& file, const std::string& to, mode_t mode) {
  VRUN_ASSIGN(const UniqueFd in, OpenFile(file.source, O_RDONLY | O_NOFOLLOW));
  VRUN_ASSIGN(const UniqueFd out, OpenFile(to, O_CREAT | O_EXCL | O_WRONLY, mode));
  if (::fchmod(out.get(), mode) != 0) return ErrnoError("chmod " + Escape(to));
  struct stat st {};
  if (::fstat(in.get(), &st) != 0) return ErrnoError("read " + Escape(file.source));
  const auto copied = CopyContent(in.get(), out.get(), static_cast<uint64_t>(st.st_size));
  if (!copied) return Error(copied.error()).With("copy " + Escape(file.source));
  if (::fsync(out.get()) != 0) return ErrnoError("fsync " + Escape(to));
  return {};
}

class Maker {
 public:
  Maker(const Driver& driver, std::string directory, const std::set<DriverUse>& uses)
      : driver_(driver), directory_(std::move(directory)), uses_(uses) {}

  Status Make() {
    VRUN_TRY(RemoveTree(directory_));
    VRUN_TRY(MakeDirs(directory_, 0755));
    bool links = true;
    for (const DriverFile& file : driver_.files) links = links && (file.source.empty() || MayLink(file));
    for (const DriverFile& file : driver_.files) {
      if (!links && uses_.count(file.use) == 0) continue;
      VRUN_TRY(Add(file));
      added_.push_back(file);
    }
    const std::vector<BundleLibrary> libraries = Libraries(added_);
    for (const BundleLibrary& library : libraries) {
      if (library.name == library.target) continue;
      const std::string link = directory_ + "/lib64/" + library.name;
      if (::symlink(library.target.c_str(), link.c_str()) != 0) return ErrnoError("symlink " + Escape(link));
    }
    return WriteFileAtomic(directory_ + kListFile, List(libraries), 0644);
  }

 private:
  bool MayLink(const DriverFile& file) const {
    const std::string probe = directory_ + "/probe";
    const bool may = ::link(file.source.c_str(), probe.c_str()) == 0;
    ::unlink(probe.c_str());
    return may;
  }

  Status Add(const DriverFile& file) {
    const std::string to = directory_ + "/" + file.name;
    VRUN_TRY(MakeDirs(to.substr(0, to.rfind('/')), 0755));
    if (file.source.empty()) return WriteFileAtomic(to, file.content, 0644);
    if (::link(file.source.c_str(), to.c_str()) == 0) return {};
    return CopyFile(file, to, file.name.starts_with("bin/") ? 0755 : 0644);
  }

  std::string List(const std::vector<BundleLibrary>& libraries) const {
    std::string text = std::string(kFirstLine) + "\nversion " + driver_.version + "\n";
    for (const BundleLibrary& library : libraries) text += "library " + library.name + " " + library.target + "\n";
    for (const DriverFile& file : added_) {
      if (file.name.starts_with("bin/")) text += "program " + BaseName(file.name) + "\n";
      if (!file.name.starts_with("bin/") && !file.name.starts_with("lib64/")) text += "data " + file.name + "\n";
    }
    return text;
  }

  const Driver& driver_;
  const std::string directory_;
  const std::set<DriverUse>& uses_;
  std::vector<DriverFile> added_;
};

}  // namespace

bool Bundle::Has(std::string_view data_file) const {
  return std::find(data.begin(), data.end(), data_file) != data.end();
}

Result<Bundle> Bundle::Read(const std::string& directory) {
  VRUN_ASSIGN(const std::string text, ReadFile(directory + kListFile, kMostList));
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) {
    return Error(Code::kCorrupt, Escape(directory) + ": no driver bundle: remove it, it will be made again");
  }
  Bundle bundle{.directory = directory, .version = {}, .libraries = {}, .programs = {}, .data = {}};
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind, name, target;
    words >> kind >> name >> target;
    if (kind == "version") bundle.version = name;
    if (kind == "library") bundle.libraries.push_back({name, target});
    if (kind == "program") bundle.programs.push_back(name);
    if (kind == "data") bundle.data.push_back(name);
  }
  return bundle;
}

Result<Bundle> MakeBundle(const Driver& driver, const std::string& parent, const std::set<DriverUse>& uses) {
  VRUN_TRY(MakeDirs(parent, 0755));
  VRUN_ASSIGN(const std::string name, Identity(driver, uses));
  const std::string directory = parent + "/" + name;
  if (Result<Bundle> bundle = Bundle::Read(directory)) return bundle;
  const std::string next = parent + "/.new-" + name;
  Status made = Maker(driver, next, uses).Make();
  if (!made) return std::move(made).error().With("gather the GPU driver's files");
  VRUN_TRY(RemoveTree(directory));
  if (::rename(next.c_str(), directory.c_str()) != 0) return ErrnoError("rename to " + Escape(directory));
  VRUN_ASSIGN(const UniqueFd above, OpenFile(parent, O_RDONLY | O_DIRECTORY));
  if (::fsync(above.get()) != 0) return ErrnoError("fsync " + Escape(parent));
  return Bundle::Read(directory);
}

Status RemoveBundles(const std::string& parent, const std::set<std::string>& keep) {
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return errno == ENOENT ? Status() : Status(ErrnoError("open " + Escape(parent)));
  VRUN_ASSIGN(const std::vector<std::string> names, NamesIn(directory.get()));
  for (const std::string& name : names) {
    const std::string path = parent + "/" + name;
    if (keep.count(path) == 0) VRUN_TRY(RemoveTree(path));
  }
  return {};
}

}  // namespace vrun::gpu
