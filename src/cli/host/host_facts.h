// SPDX-License-Identifier: Apache-2.0
// What a host offers, and what follows from it. The facts are gathered in one place and are plain data; every check is
// a pure function of them, so that a host without /dev/fuse is a unit test.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"

namespace vrun::cli {

// The outcome of trying something.
struct Attempt {
  bool ok = false;
  int error_number = 0;
};

struct HostFacts {
  uint32_t uid = 0;
  std::string kernel;        // "6.18.44"
  bool fuse_exists = false;  // /dev/fuse
  Attempt fuse_open;
  Attempt user_namespace;                            // unshare in a child
  std::optional<int64_t> unprivileged_userns_clone;  // the sysctl of Debian's kernels
  std::optional<int64_t> max_user_namespaces;
  std::string filesystems;      // text of /proc/filesystems
  std::string cgroup_v2_mount;  // "": none
  std::string cgroup_v2_controllers;
  std::string cgroup_v1_controllers;  // mounted ones, blank separated
  Attempt fanotify;                   // a mark of names on a file system
  std::optional<int64_t> inotify_watches;
  uint64_t max_open_files = 0;  // hard limit
  std::string state_directory;
  uint64_t free_bytes = 0;  // there
  std::string vrund;        // "": not found
  bool vrund_task = false;  // beside it

  bool configured = false;  // there is a configuration with a controller
  std::string config_error;
  std::string config_file;
  std::string controller;         // HOST:PORT
  bool local_controller = false;  // `vctl up` runs it here
  bool local_node = false;
  std::string port_error;  // "": the default port is free, or our own controller has it
  bool home_running = false;
  std::string home_error;             // socket there, nobody answers, ...
  bool controller_connected = false;  // says home
  std::string controller_error;
  std::optional<int64_t> clock_skew_us;  // of the controller against us
  bool clock_synchronised = false;
  // The pool's S3 store, says the controller.
  std::string s3_bucket;  // "": none
  std::string s3_endpoint;
  std::string s3_problem;   // "": it works
  bool s3_checked = false;  // the controller has tried
};

enum class Level { kOk, kWarn, kFail };

struct Finding {
  std::string name;
  Level level = Level::kOk;
  std::string text;        // what is so
  std::string what_to_do;  // "" when it is fine
};

// Can a node run here at all: root, /dev/fuse, user namespaces, kernel, overlayfs.
std::vector<Finding> CheckNodeEssentials(const HostFacts& facts);
// Everything, in a sensible order. On a machine that only submits to a cluster elsewhere what a node would lack is a
// warning.
std::vector<Finding> CheckAll(const HostFacts& facts);

// Only what CheckNodeEssentials looks at.
HostFacts GatherEssentials();
// All; asks home when it runs, starts nothing.
HostFacts GatherFacts(const Places& places);

}  // namespace vrun::cli
