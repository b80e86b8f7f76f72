// SPDX-License-Identifier: Apache-2.0
// What a host offers, and the findings from it. The facts are gathered in one place and are plain data. Every check is
// a pure function of them, so a host without /dev/fuse can be a unit test.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"

namespace vrun::cli {

// The outcome of a trial.
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
  Attempt fanotify;                   // marking a file system for events of names
  std::optional<int64_t> inotify_watches;
  uint64_t max_open_files = 0;  // hard limit
  std::string state_directory;
  uint64_t free_bytes = 0;  // in that directory
  std::string vrund;        // "": not found
  bool vrund_task = false;  // beside vrund

  bool configured = false;  // the configuration names a controller
  std::string config_error;
  std::string config_file;
  std::string controller;         // HOST:PORT
  bool local_controller = false;  // `vctl up` runs the controller here
  bool local_node = false;
  std::string port_error;  // "": the default port is free or used by our own controller
  bool home_running = false;
  std::string home_error;             // why home is unreachable: its socket exists but nobody answers, ...
  bool controller_connected = false;  // as home reports
  std::string controller_error;
  std::optional<int64_t> clock_skew_us;  // of the controller relative to us
  bool clock_synchronised = false;
  // The pool's S3 store, as the controller reports it.
  std::string s3_bucket;  // "": none
  std::string s3_endpoint;
  std::string s3_problem;   // "": it works
  bool s3_checked = false;  // the controller has tested it
};

enum class Level { kOk, kWarn, kFail };

struct Finding {
  std::string name;
  Level level = Level::kOk;
  std::string text;        // the finding
  std::string what_to_do;  // "" when no action is needed
};

// Whether a node can run here at all: root, /dev/fuse, user namespaces, kernel, overlayfs.
std::vector<Finding> CheckNodeEssentials(const HostFacts& facts);
// All checks, in a sensible order. On a machine that only submits to a remote cluster, a missing requirement of a node
// is only a warning.
std::vector<Finding> CheckAll(const HostFacts& facts);

// Gathers only the facts that CheckNodeEssentials needs.
HostFacts GatherEssentials();
// Gathers all facts. Asks home if it runs; starts nothing.
HostFacts GatherFacts(const Places& places);

}  // namespace vrun::cli
