// SPDX-License-Identifier: Apache-2.0
// The user-space files of the node's GPU driver, as it is installed.
//
// They are found beside its libcuda.so.<version> by that suffix, not from a list of names, because each driver brings
// new ones. Only a few files that have a version of their own are named.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

enum class DriverUse { kCompute, kVideo, kGraphics };

struct DriverFile {
  std::string source;  // absolute, on the node, without links; "": `content` instead
  std::string name;    // in the bundle: "lib64/libcuda.so.580.159.04", "bin/nvidia-smi"
  std::string soname;  // of libraries; "": none
  DriverUse use = DriverUse::kCompute;
  std::string content = {};  // of files that the driver does not have, but loaders need
};

struct Driver {
  std::string version;  // "580.159.04"
  std::vector<DriverFile> files;
  // Sockets of the node's daemons that exist: nvidia-persistenced, nvidia-fabricmanager. Not given to pods: CUDA works
  // without them (decision 32), and each belongs to a root daemon that strangers could talk to.
  std::vector<std::string> sockets;
};

struct DriverSearch {
  std::string root = "/";                // --driver-root: where the driver's own / is
  std::vector<std::string> directories;  // of libraries, below root; empty: the usual ones and those of its ld.so.cache
  // The version of the loaded kernel module; "": unknown. Of several installed drivers this one is taken.
  std::string kernel_version;
};

// "580.159.04" from the text of /proc/driver/nvidia/version; "" if it has none.
std::string KernelDriverVersion(std::string_view proc_version);

// kNotFound: no driver, or not that of the kernel. kDenied: a file of it that others than root can write.
Result<Driver> FindDriver(const DriverSearch& search);

}  // namespace vrun::gpu
