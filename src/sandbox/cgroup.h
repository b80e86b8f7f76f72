// SPDX-License-Identifier: Apache-2.0
// Control groups of one sandbox: limits on memory, cpu and processes, which processors it uses, killing, usage.
//
// Hosts differ: version 1 hierarchies (limits) with a version 2 one beside them (kill, usage), or version 2 alone.
// Groups are MOUNT/vrun/NAME in every hierarchy that is needed. A host that offers none still runs jobs, without
// limits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Where this host has which controller. "" where it does not.
struct CgroupHost {
  struct Place {
    std::string mount;
    bool v2 = false;
    explicit operator bool() const { return !mount.empty(); }
  };
  Place memory, cpu, pids, cpuset;
  std::string unified;  // the version 2 mount, with or without controllers
};
// From the text of /proc/self/mountinfo and, for version 2, cgroup.controllers.
CgroupHost DetectCgroups();
CgroupHost ParseCgroupMounts(const std::string& mountinfo, const std::string& v2_controllers);

// Removes the groups that a killed supervisor left behind. Fails where processes are still inside.
Status RemoveCgroups(const CgroupHost& host, const std::string& name);

// Removes what killed supervisors left behind: groups without processes that are older than `min_age_s`. A group that
// is in use has init inside from its first milliseconds to the end.
void SweepCgroups(const CgroupHost& host, int64_t min_age_s = 60);

// One thread. Not removed by the destructor: Remove says whether it worked.
class Cgroup {
 public:
  Cgroup() = default;

  // Makes the groups and sets the limits. What cannot be enforced becomes a line in `notices`.
  void Create(const CgroupHost& host, const std::string& name, const GroupLimits& limits,
              std::vector<std::string>* notices);
  // The version 2 group, for clone3; -1: there is none.
  int unified_fd() const { return unified_.get(); }
  // Of version 1: whoever writes "0" here has entered. The child does it itself, because a thread that moves itself
  // takes no machine-wide lock; moving another one waits for an RCU grace period, about 10 ms. Checked against our
  // rights, not the child's.
  std::vector<int> entrances() const;
  // The child is inside.
  void CloseEntrances() { entrances_.clear(); }

  void Kill();  // version 2 only; otherwise the death of pid 1 does it
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
  std::string memory_path_;  // where memory is accounted; version 1 or 2
  bool memory_v2_ = false;
  std::vector<std::string> paths_;  // all that were made
  std::vector<std::string> unenforced_;
};

}  // namespace vrun::sandbox
