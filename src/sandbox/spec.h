// SPDX-License-Identifier: Apache-2.0
// What a sandbox is asked to be: plain values, no wire format. Built by the task supervisor from its TaskSpec.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cpu_list.h"
#include "base/id_map.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

struct Identity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
};

struct ResourceLimit {
  int resource = 0;   // RLIMIT_*
  uint64_t soft = 0;  // clipped to the hard limit that the node gives; UINT64_MAX: infinity
};

inline constexpr int kMostDescriptor = 900;  // a program may open 1024 unless somebody allowed more

// One more pipe of the command: 3 to kMostDescriptor.
struct Descriptor {
  int number = 0;
  bool output = false;  // the command writes
};

struct WindowSize {
  uint16_t rows = 0, columns = 0, x_pixels = 0, y_pixels = 0;
};

// What the control groups enforce. 0: no limit.
struct GroupLimits {
  uint64_t memory_bytes = 0;
  uint32_t milli_cpus = 0;
  uint64_t pids = 0;
  CpuList cpus = {};  // the only ones that it may use; empty: no limit
};

struct Spec {
  std::string name;  // of the control groups: no slash; of this task alone on the whole host
  std::string
      directory;  // the task directory, absolute, on the node's disk; upper, work, tmp, lower, apart are made inside
  IdMap ids;      // from ids inside to those of the host
  bool live_root = false;  // the view is the root itself, and written to: no overlay, no upper
  GroupLimits limits;
  std::string hostname;  // "": the node's
  std::string hosts;     // lines for /etc/hosts of this job, after those of its root; "": only the root's

  std::vector<std::string> argv;         // argv[0] is resolved inside, with PATH of `environment`
  std::vector<std::string> environment;  // exactly what the command gets
  std::string script;                    // not "": the content of kScriptPath inside, executable
  std::string working_directory;         // absolute
  Identity identity;
  uint32_t umask = 022;
  int nice = 0;
  std::vector<ResourceLimit> resource_limits;
  bool terminal = false;  // a pty instead of three pipes
  std::vector<Descriptor> descriptors;
  WindowSize window;
};

// What the writable root is made of: detached mounts of the whole tree and, or empty, of what of it lies apart, which
// goes above (src/tree/tree.h, Directory::apart).
struct RootViews {
  UniqueFd whole;
  UniqueFd apart;
};

// Called with the paths of the empty upper directory and of both views ("" without the second one) before they are
// mounted as one.
using PrepareUpper =
    std::function<Status(const std::string& upper, const std::string& lower, const std::string& apart)>;

}  // namespace vrun::sandbox
