// SPDX-License-Identifier: Apache-2.0
// The description of a sandbox: plain values, independent of the wire format. The task supervisor builds it from its
// TaskSpec.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cpu_list.h"
#include "base/id_map.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/filter/network_filter.h"
#include "sandbox/mounts/injection.h"

namespace vrun::sandbox {

struct Identity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
};

struct ResourceLimit {
  int resource = 0;   // RLIMIT_*
  uint64_t soft = 0;  // clipped to the node's hard limit; UINT64_MAX: infinity
};

// The processes that a sandbox may start as its command.
inline constexpr size_t kMostRanks = 1024;

// The socket on which programs speak with the supervisor (node/gang/job_socket.h).
inline constexpr const char kJobSocketPath[] = "/run/vrun/job.sock";
// What Spec::program is called inside. It can tell from argv[0] what it is asked for.
inline constexpr const char* kProgramPaths[] = {"/run/vrun/notify", "/run/vrun/rsh"};

// A file below /run, readable for all; a secret only for the command's user.
struct RunFile {
  std::string path;
  std::string content;
  bool secret = false;
};

inline constexpr int kMostDescriptor = 900;  // below 1024, the usual limit of open files

// An additional pipe of the command: numbers 3 to kMostDescriptor.
struct Descriptor {
  int number = 0;
  bool output = false;  // the command writes
};

struct WindowSize {
  uint16_t rows = 0, columns = 0, x_pixels = 0, y_pixels = 0;
};

// Limits that the control groups enforce. 0: no limit.
struct GroupLimits {
  uint64_t memory_bytes = 0;
  uint32_t milli_cpus = 0;
  uint64_t pids = 0;
  CpuList cpus = {};  // the allowed processors; empty: no limit
};

// What the node's administrator allows, and what he refuses.
struct Policy {
  // Setuid programs and file capabilities of the root work (sudo, su, ping). They give rights in the sandbox's own user
  // namespace only, but there is no need for them in most jobs, so the default is no_new_privs.
  bool allow_setuid = false;
  bool allow_namespaces = true;  // namespaces and mounts of the command's own
  bool allow_fuse = false;       // /dev/fuse
  bool private_network = false;  // a network namespace of its own
  // The start fails if the devices cannot be filtered. Else that is a notice.
  bool require_device_filter = false;
  NetworkPolicy network;  // with private_network: no local ports and no owners
};

struct Spec {
  std::string name;        // name of the control groups: no slash; unique on the whole host
  std::string directory;   // the task directory, absolute, on the node's disk; contains upper, work, tmp, lower, apart
  IdMap ids;               // maps ids inside to those of the host
  bool live_root = false;  // the view itself is the writable root: no overlay, no upper
  std::vector<std::string> live_paths;  // absolute: directories of RootViews::live that cover those of the root
  GroupLimits limits;
  std::string hostname;  // "": the node's hostname
  Policy policy;
  Injection injection;  // devices, and what belongs to them
  std::string hosts;    // lines for this job's /etc/hosts, after those of its root; "": only the root's

  std::vector<std::string> argv;         // argv[0] is resolved inside, with PATH of `environment`
  std::vector<std::string> environment;  // the command's complete environment
  std::string script;                    // if not "": the content of kScriptPath inside, executable
  std::string working_directory;         // absolute
  Identity identity;
  uint32_t umask = 022;
  int nice = 0;
  std::vector<ResourceLimit> resource_limits;
  bool terminal = false;  // use a pty instead of three pipes
  std::vector<Descriptor> descriptors;
  WindowSize window;

  // Environments of further processes of the command, after the first one. Each has three pipes of its own.
  std::vector<std::vector<std::string>> more_ranks;
  bool idle = false;        // there is no command: only processes that Sandbox::Exec starts
  bool gate = false;        // everything is prepared, but the command is executed only after Sandbox::Go
  bool job_socket = false;  // listen at kJobSocketPath; see Sandbox::TakeJobSocket
  std::string program;      // "": none; an executable of the host for kProgramPaths
  std::vector<RunFile> files;
};

// Detached mounts from which the writable root is made: the whole tree and, unless empty, its apart view, which is
// layered above it (src/tree/tree.h, Directory::apart).
struct RootViews {
  UniqueFd whole;
  UniqueFd apart;
  UniqueFd live;  // the live view, for Spec::live_paths
};

// Called with the paths of the empty upper directory and of both views ("" if there is no second one) before they are
// mounted as one overlay.
using PrepareUpper =
    std::function<Status(const std::string& upper, const std::string& lower, const std::string& apart)>;

}  // namespace vrun::sandbox
