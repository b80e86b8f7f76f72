// SPDX-License-Identifier: Apache-2.0
#include "sandbox/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <sstream>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::sandbox {
namespace {

constexpr const char* kParent = "/vrun";

// mountinfo writes spaces and backslashes as \ooo.
std::string Unquote(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool HasWord(const std::string& list, const std::string& word, char separator) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, separator);) {
    if (item == word) return true;
  }
  return false;
}

// The value of `key` in a file of "key value" lines; 0 if absent.
uint64_t KeyedValue(const std::string& path, const std::string& key) {
  Result<std::string> text = ReadFile(path, 1 << 20);
  if (!text) return 0;
  std::istringstream in(*text);
  std::string k;
  for (uint64_t v; in >> k >> v;) {
    if (k == key) return v;
  }
  return 0;
}

uint64_t Number(const std::string& path) {
  Result<std::string> text = ReadFile(path, 4096);
  return text ? std::strtoull(text->c_str(), nullptr, 10) : 0;
}

Status MakeDir(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoError("mkdir " + Escape(path));
  return {};
}

// Microseconds. The kernel refuses a quota below 1 ms and a period above 1 s, so a thousandth of a processor is the
// least.
uint64_t CpuPeriod(uint32_t milli_cpus) { return milli_cpus < 10 ? 1'000'000 : 100'000; }
uint64_t CpuQuota(uint32_t milli_cpus) { return CpuPeriod(milli_cpus) / 1000 * milli_cpus; }

// Whether the assigned processors already enforce the CPU limit.
bool HeldByItsProcessors(const GroupLimits& limits) {
  const size_t cpus = limits.cpus.empty() ? AllowedCpus().size() : limits.cpus.size();
  return cpus * 1000 <= limits.milli_cpus;
}

// Enables a controller for our groups in the version 2 mount.
void HandDown(const std::string& unified, const char* word) {
  static_cast<void>(WriteKernelFile(unified + "/cgroup.subtree_control", word));
  static_cast<void>(WriteKernelFile(unified + kParent + "/cgroup.subtree_control", word));
}

// A version 1 cpuset accepts no process before it has processors and memory nodes, which must be a subset of its
// parent's.
Status FillParentCpuset(const std::string& mount) {
  for (const char* file : {"/cpuset.mems", "/cpuset.cpus"}) {
    VRUN_ASSIGN(std::string all, ReadFile(mount + file, 1 << 16));
    VRUN_TRY(WriteKernelFile(mount + kParent + file, all));
  }
  return {};
}

Status FillCpuset(const std::string& mount, const std::string& path, const std::string& cpus) {
  VRUN_ASSIGN(std::string nodes, ReadFile(mount + kParent + "/cpuset.mems", 1 << 16));
  if (nodes.empty() || nodes == "\n") return Error(Code::kNotFound, "no memory nodes");
  VRUN_TRY(WriteKernelFile(path + "/cpuset.mems", nodes));
  return WriteKernelFile(path + "/cpuset.cpus", cpus);
}

// Creates an empty group. Replaces one that a killed supervisor left, because its counters are not ours.
Status MakeGroup(const std::string& mount, const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  if (errno == ENOENT) VRUN_TRY(MakeDir(mount + kParent));
  if (errno == EEXIST) ::rmdir(path.c_str());
  return MakeDir(path);
}

Status RemoveGroup(const std::string& path) {
  // A dead process stays in its group until it has been reaped by its parent there: a few milliseconds at most.
  for (int i = 0; i < 50; ++i) {
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return {};
    if (errno != EBUSY) break;
    ::usleep(1000);
  }
  return ErrnoError("rmdir " + Escape(path));
}

}  // namespace

CgroupHost ParseCgroupMounts(const std::string& mountinfo, const std::string& v2_controllers) {
  CgroupHost host;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line), right(line.substr(dash + 3));
    std::string id, parent, device, root, mount, type, source, options;
    left >> id >> parent >> device >> root >> mount;
    right >> type >> source >> options;
    mount = Unquote(mount);
    if (type == "cgroup2" && host.unified.empty()) host.unified = mount;
    if (type != "cgroup") continue;
    auto take = [&](CgroupHost::Place* place, const char* controller) {
      if (!*place && HasWord(options, controller, ',')) *place = {mount, false};
    };
    take(&host.memory, "memory");
    take(&host.cpu, "cpu");
    take(&host.pids, "pids");
    take(&host.cpuset, "cpuset");
    take(&host.devices, "devices");
  }
  if (host.unified.empty()) return host;
  std::string controllers = v2_controllers;
  while (!controllers.empty() && controllers.back() == '\n') controllers.pop_back();
  auto take = [&](CgroupHost::Place* place, const char* controller) {
    if (!*place && HasWord(controllers, controller, ' ')) *place = {host.unified, true};
  };
  take(&host.memory, "memory");
  take(&host.cpu, "cpu");
  take(&host.pids, "pids");
  take(&host.cpuset, "cpuset");
  return host;
}

CgroupHost DetectCgroups() {
  Result<std::string> mounts = ReadFile("/proc/self/mountinfo");
  if (!mounts) return {};
  CgroupHost host = ParseCgroupMounts(*mounts, "");
  if (host.unified.empty()) return host;
  Result<std::string> controllers = ReadFile(host.unified + "/cgroup.controllers");
  return controllers ? ParseCgroupMounts(*mounts, *controllers) : host;
}

Status RemoveCgroups(const CgroupHost& host, const std::string& name) {
  Status status;
  for (const std::string& mount :
       {host.memory.mount, host.cpu.mount, host.pids.mount, host.cpuset.mount, host.devices.mount, host.unified}) {
    if (mount.empty()) continue;
    Status removed = RemoveGroup(mount + kParent + "/" + name);
    if (!removed) status = std::move(removed);
  }
  return status;
}

void SweepCgroups(const CgroupHost& host, int64_t min_age_s) {
  for (const std::string& mount :
       {host.memory.mount, host.cpu.mount, host.pids.mount, host.cpuset.mount, host.devices.mount, host.unified}) {
    if (mount.empty()) continue;
    std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir((mount + kParent).c_str()), ::closedir);
    if (!directory) continue;
    while (const dirent* entry = ::readdir(directory.get())) {
      struct stat st;
      if (entry->d_name[0] == '.' || entry->d_type != DT_DIR) continue;
      if (::fstatat(::dirfd(directory.get()), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (st.st_ctim.tv_sec > WallMicros() / 1000000 - min_age_s) continue;
      ::unlinkat(::dirfd(directory.get()), entry->d_name, AT_REMOVEDIR);  // EBUSY if it contains processes
    }
  }
}

std::string Cgroup::AddGroup(const std::string& mount, const std::string& name, Status* status) {
  std::string path = mount + kParent + "/" + name;
  for (const std::string& p : paths_) {
    if (p == path) return path;  // several controllers in one hierarchy
  }
  *status = MakeGroup(mount, path);
  if (*status) paths_.push_back(path);
  return path;
}

void Cgroup::Limit(const std::string& file, uint64_t value, const char* what) {
  if (!WriteKernelFile(file, std::to_string(value))) unenforced_.push_back(what);
}

void Cgroup::CreateUnified(const CgroupHost& host, const std::string& name, const GroupLimits& limits) {
  if (host.unified.empty()) return;
  bool first = !PathExists(host.unified + kParent);
  if (first) static_cast<void>(MakeDir(host.unified + kParent));
  // A controller works in a group only when every group above enables it.
  for (auto [place, word] : {std::pair(&host.memory, "+memory"), {&host.cpu, "+cpu"}, {&host.pids, "+pids"}}) {
    if (first && place->v2) HandDown(host.unified, word);
  }
  Status status;
  std::string path = AddGroup(host.unified, name, &status);
  if (!status) return;
  unified_path_ = path;
  unified_.Reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (host.memory.v2) {
    memory_path_ = path;
    memory_v2_ = true;
    if (limits.memory_bytes != 0) {
      Limit(path + "/memory.max", limits.memory_bytes, "memory");
      static_cast<void>(WriteKernelFile(path + "/memory.swap.max", "0"));
    }
  }
  if (host.cpu.v2 && limits.milli_cpus != 0) {
    std::string quota =
        std::to_string(CpuQuota(limits.milli_cpus)) + " " + std::to_string(CpuPeriod(limits.milli_cpus));
    if (!WriteKernelFile(path + "/cpu.max", quota)) unenforced_.push_back("cpu");
  }
  if (host.pids.v2 && limits.pids != 0) Limit(path + "/pids.max", limits.pids, "processes");
}

// Best effort, without a notice: the command's own affinity has the same effect and is visible to programs that query
// it. A program cannot escape the group.
void Cgroup::CreateCpuset(const CgroupHost& host, const std::string& name, const CpuList& cpus) {
  if (cpus.empty() || !host.cpuset) return;
  const std::string list = FormatCpuList(cpus);
  if (host.cpuset.v2) {
    if (unified_path_.empty() || WriteKernelFile(unified_path_ + "/cpuset.cpus", list)) return;
    HandDown(host.unified, "+cpuset");
    static_cast<void>(WriteKernelFile(unified_path_ + "/cpuset.cpus", list));
    return;
  }
  const std::string& mount = host.cpuset.mount;
  Status status;
  const std::string path = AddGroup(mount, name, &status);
  if (!status) return;
  // If the parent is new, or has lost a processor that was offline for a while, fill it first.
  if (!FillCpuset(mount, path, list) && (!FillParentCpuset(mount) || !FillCpuset(mount, path, list))) return;
  UniqueFd entrance(::open((path + "/tasks").c_str(), O_WRONLY | O_CLOEXEC));
  if (entrance) entrances_.push_back(std::move(entrance));
}

// Creates a version 1 group and opens its entrance. Returns "" and notes `what` if that fails.
std::string Cgroup::CreateFor(const CgroupHost::Place& place, const std::string& name, const char* what) {
  if (place.v2 && !unified_path_.empty()) return "";  // done by CreateUnified
  Status status;
  std::string path = place && !place.v2 ? AddGroup(place.mount, name, &status) : "";
  if (status && !path.empty()) {
    UniqueFd entrance(::open((path + "/tasks").c_str(), O_WRONLY | O_CLOEXEC));
    if (entrance) {
      entrances_.push_back(std::move(entrance));
      return path;
    }
  }
  unenforced_.push_back(what);
  return "";
}

Status Cgroup::LimitDevices(const CgroupHost& host, const std::string& name, const std::vector<DeviceRule>& allowed) {
  if (!host.devices) return Error(Code::kUnsupported, "this host has no control groups for devices");
  std::string path = CreateFor(host.devices, name, "devices");
  if (path.empty()) return Error(Code::kUnsupported, "this host's control group for devices cannot be used");
  return FilterDevicesV1(path, allowed);
}

void Cgroup::Create(const CgroupHost& host, const std::string& name, const GroupLimits& limits,
                    std::vector<std::string>* notices) {
  CreateUnified(host, name, limits);
  // Memory is accounted even without a limit, for the peak and the reason of a kill.
  if (std::string path = CreateFor(host.memory, name, "memory"); !path.empty()) {
    memory_path_ = path;
    if (limits.memory_bytes != 0) {
      Limit(path + "/memory.limit_in_bytes", limits.memory_bytes, "memory");
      // Exists only where swap is accounted.
      static_cast<void>(WriteKernelFile(path + "/memory.memsw.limit_in_bytes", std::to_string(limits.memory_bytes)));
    }
  }
  if (limits.milli_cpus != 0) {
    std::string path = CreateFor(host.cpu, name, "cpu");
    if (!path.empty()) {
      Limit(path + "/cpu.cfs_period_us", CpuPeriod(limits.milli_cpus), "cpu");
      Limit(path + "/cpu.cfs_quota_us", CpuQuota(limits.milli_cpus), "cpu");
    }
  }
  if (limits.pids != 0) {
    std::string path = CreateFor(host.pids, name, "processes");
    if (!path.empty()) Limit(path + "/pids.max", limits.pids, "processes");
  }
  CreateCpuset(host, name, limits.cpus);
  for (const std::string& what : unenforced_) {
    if (what == "memory" && limits.memory_bytes == 0) continue;
    if (what == "cpu" && HeldByItsProcessors(limits)) continue;
    notices->push_back("the limit on " + what + " is not enforced: the node has no usable control group for it");
  }
  unenforced_.clear();
}

std::vector<int> Cgroup::entrances() const {
  std::vector<int> out;
  for (const UniqueFd& fd : entrances_) out.push_back(fd.get());
  return out;
}

void Cgroup::Kill() {
  if (!unified_path_.empty()) static_cast<void>(WriteKernelFile(unified_path_ + "/cgroup.kill", "1"));
}

uint64_t Cgroup::oom_kills() const {
  if (memory_path_.empty()) return 0;
  return KeyedValue(memory_path_ + (memory_v2_ ? "/memory.events" : "/memory.oom_control"), "oom_kill");
}

uint64_t Cgroup::peak_memory_bytes() const {
  if (memory_path_.empty()) return 0;
  return Number(memory_path_ + (memory_v2_ ? "/memory.peak" : "/memory.max_usage_in_bytes"));
}

uint64_t Cgroup::cpu_us() const {
  return unified_path_.empty() ? 0 : KeyedValue(unified_path_ + "/cpu.stat", "usage_usec");
}

Status Cgroup::Remove() {
  Status status;
  unified_.Reset();
  for (const std::string& path : paths_) {
    Status removed = RemoveGroup(path);
    if (!removed) status = std::move(removed);
  }
  paths_.clear();
  unified_path_.clear();
  memory_path_.clear();
  return status;
}

}  // namespace vrun::sandbox
