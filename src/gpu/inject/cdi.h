// SPDX-License-Identifier: Apache-2.0
// Specifications of the Container Device Interface (CDI, versions up to 1.1.0): what vendors say a container needs for
// a device, in /etc/cdi and /var/run/cdi, as YAML or JSON.
//
// Two uses. Where the driver is: a vendor's file names its libraries even where no usual place has them. And our own
// file, so that Docker and Podman on a node can use the GPUs with the same bundle as pods.
//
// Hooks are programs that a runtime executes with the node's privileges while it prepares the container. CVE-2025-23266
// was such a hook that took its environment from the image. We execute none:
//   create-symlinks                     becomes links of the injection, below /run only
//   update-ldcache                      its folders are mounted below the bundle's path anyway; ld_cache.h writes
//   caches disable-device-node-modification    every injection masks params (injection.h) enable-cuda-compat left out:
//   the node's driver is used; who wants the other names it update-application-profile, chmod   left out: EGL counts
//   what the device filter allows; our nodes have their modes others                              named in the result,
//   for the log
//
// A file is trusted only if it and its directory belong to root and no one else can write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gpu/inject/driver_bundle.h"
#include "gpu/inject/injection.h"
#include "proto/supervisor.pb.h"

namespace vrun::gpu {

struct CdiEdits {
  struct Node {
    std::string path;       // inside
    std::string host_path;  // "": the same
    std::optional<std::pair<uint32_t, uint32_t>> number;
    uint32_t mode = 0666;
  };
  struct Mount {
    std::string host_path, container_path;
    bool read_only = false;
  };
  struct Hook {
    std::string name, path;
    std::vector<std::string> arguments;
  };
  std::vector<std::string> environment;
  std::vector<Node> nodes;
  std::vector<Mount> mounts;
  std::vector<Hook> hooks;
};

struct CdiDevice {
  std::string name;
  CdiEdits edits;
};

struct CdiSpec {
  std::string version;  // of the format
  std::string kind;     // "nvidia.com/gpu"
  std::vector<CdiDevice> devices;
  CdiEdits edits;  // of each device
};

inline constexpr size_t kMostCdiBytes = 4u << 20;

// JSON is read as YAML, which it is a part of. kCorrupt: no such file, or larger or deeper than any real one.
// kUnsupported: a version after 1.1.
Result<CdiSpec> ParseCdi(std::string_view text);

struct CdiFiles {
  std::vector<CdiSpec> specs;
  std::vector<std::string> problems;  // one line for each file that was not used
};
// The files of these directories. Missing directories are none.
CdiFiles ReadCdi(const std::vector<std::string>& directories = {"/etc/cdi", "/var/run/cdi"});

// What the named device of these specs needs ("nvidia.com/gpu=0"). Sources are checked as those of a driver: only what
// root alone can write is mounted. kNotFound: no such device. `skipped`: what was left out, for the log.
Result<v1::GpuInjection> CdiInjection(const std::vector<CdiSpec>& specs, const std::string& device,
                                      std::vector<std::string>* skipped);

// Directories in which a spec's mounts have libcuda.so.<version>: for DriverSearch.
std::vector<std::string> CdiDriverDirectories(const std::vector<CdiSpec>& specs);

// Our file: devices by number, by UUID and `all`, of the kind vrun/gpu. With Docker: --device vrun/gpu=0.
std::string FormatCdi(const std::vector<v1::Gpu>& gpus, const Bundle& bundle, const DeviceMajors& majors);

}  // namespace vrun::gpu
