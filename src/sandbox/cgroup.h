// SPDX-License-Identifier: Apache-2.0
// Control groups of one sandbox: limits on memory, CPU and processes, the allowed processors, killing, usage.
//
// Hosts differ: version 1 hierarchies (limits) plus a version 2 one (kill, usage), or version 2 alone. Groups are
// MOUNT/vrun/NAME in each needed hierarchy. A host without control groups still runs jobs, without limits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/filter/device_filter.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Where this host has each controller; "" if it has not.
struct CgroupHost {
  struct Place {
    std::string mount;
    bool v2 = false;
    explicit operator bool() const { return !mount.empty(); }
  };
  Place memory, cpu, pids, cpuset;
  Place devices;        // version 1 only: version 2 filters by a program
  std::string unified;  // the version 2 mount, with or without controllers
};
// Reads /proc/self/mountinfo and, for version 2, cgroup.controllers.
CgroupHost DetectCgroups();
CgroupHost ParseCgroupMounts(const std::string& mountinfo, const std::string& v2_controllers);

// Removes groups left by a killed supervisor. Fails if processes are still inside.
Status RemoveCgroups(const CgroupHost& host, const std::string& name);

// Removes what killed supervisors left: groups without processes that are older than `min_age_s`. A group in use
// contains its init from the first milliseconds to the end.
void SweepCgroups(const CgroupHost& host, int64_t min_age_s = 60);

// Single-threaded. The destructor does not remove the groups; Remove does and reports failures.
class Cgroup {
 public:
  Cgroup() = default;

  // Creates the groups and sets the limits. Limits that cannot be enforced are added as lines to `notices`.
  void Create(const CgroupHost& host, const std::string& name, const GroupLimits& limits,
              std::vector<std::string>* notices);
  // Version 1's controller, for hosts without a version 2 hierarchy (which has programs: device_filter.h). Lets the
  // processes of the group open these devices only. Call after Create, before anybody is inside.
  Status LimitDevices(const CgroupHost& host, const std::string& name, const std::vector<DeviceRule>& allowed);
  // The version 2 group, for clone3; -1 if there is none.
  int unified_fd() const { return unified_.get(); }
  // Version 1: writing "0" to one of these moves the writer into the group. The child does it itself, because a thread
  // that moves itself takes no machine-wide lock, while moving another one waits for an RCU grace period (about 10 ms).
  // The kernel checks our rights, not the child's.
  std::vector<int> entrances() const;
  // Call once the child is inside.
  void CloseEntrances() { entrances_.clear(); }

  void Kill();  // version 2 only; otherwise the death of pid 1 kills the processes
  uint64_t oom_kills() const;
  uint64_t peak_memory_bytes() const;  // 0: unknown
  uint64_t cpu_us() const;             // 0: unknown
  Status Remove();

 private:
  void CreateUnified(const CgroupHost& host, const std::string& name, const GroupLimits& limits);
  std::string CreateFor(const CgroupHost::Place& place, const std::string& name, const char* what);
  std::string AddGroup(const std::string& mount, const std::string& name, Status* status);
  void CreateCpuset(const CgroupHost& host, const std::string& name, const CpuList& cpus);
  void Limit(const std::string& file, uint64_t value, const char* what);

  UniqueFd unified_;
  std::vector<UniqueFd> entrances_;
  std::string unified_path_;
  std::string memory_path_;  // where memory is accounted, version 1 or 2
  bool memory_v2_ = false;
  std::vector<std::string> paths_;  // all created groups
  std::vector<std::string> unenforced_;
};

}  // namespace vrun::sandbox
