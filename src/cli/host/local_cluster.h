// SPDX-License-Identifier: Apache-2.0
// The cluster that `vctl up` runs on this machine: its daemons, and starting and stopping exactly those.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "cli/base/daemon_process.h"
#include "cli/base/home_connection.h"

namespace vrun::cli {

// Files in which `vctl up` records what it started.
class ClusterFiles {
 public:
  explicit ClusterFiles(const Places& places) : dir_(places.state_dir + "/cluster") {}

  const std::string& dir() const { return dir_; }
  std::string lock() const { return dir_ + "/lock"; }
  // "controller", "snapshots" or "node"
  std::string pid_file(const std::string& daemon) const { return dir_ + "/" + daemon + ".pid"; }
  std::string listen_file() const { return dir_ + "/controller.listen"; }
  std::string snapshots_listen_file() const { return dir_ + "/snapshots.listen"; }
  std::string http_file() const { return dir_ + "/controller.http"; }
  std::string node_dir_file() const { return dir_ + "/node.dir"; }

  // The daemon started from here, if it still runs.
  std::optional<ProcessId> Running(const std::string& daemon) const;

 private:
  std::string dir_;
};

struct UpOptions {
  std::string listen;          // HOST:PORT; "": as before, else 127.0.0.1 and a free port
  std::string http;            // HOST:PORT of the HTTP API, "none"; "": as before, else none
  std::string root;            // "": from the configuration
  std::string node_directory;  // "": as before, else the default
  bool node = true;
};

struct UpDaemon {
  std::string name;
  std::string where;  // address or directory
  pid_t pid = 0;
  bool started = false;  // by this call
};

struct UpReport {
  std::vector<UpDaemon> daemons;
  std::string controller;  // HOST:PORT to dial
  std::string http;        // HOST:PORT of the HTTP API; "": none
  std::string root;
  bool anything_started() const;
};

// Serialized by a lock. `tell` gets one line per step, for people.
Result<UpReport> BringUp(const HomeConnection& home, const UpOptions& options, void (*tell)(const std::string&));

struct DownReport {
  std::vector<std::string> stopped;
  std::vector<std::string> unmounted;
};
// Stops the node first, the controller last. kAborted when jobs run through this home and `all` is false.
Result<DownReport> BringDown(const HomeConnection& home, bool all, void (*tell)(const std::string&));

// The mount points below `directory` in the text of /proc/self/mountinfo, deepest first.
std::vector<std::string> MountsBelow(std::string_view mountinfo, const std::string& directory);

// HOST:PORT under which this machine reaches a listener on `listen`: 0.0.0.0 and [::] become the loopback.
std::string DialAddress(const HostPort& listen);
// Fails when the address is already in use or may not be bound.
Status CheckPortFree(const HostPort& address);

}  // namespace vrun::cli
