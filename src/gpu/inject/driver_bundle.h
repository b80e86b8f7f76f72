// SPDX-License-Identifier: Apache-2.0
// The user-space files of the node's GPU driver, gathered in one read-only directory that is mounted into pods.
//
//   <directory>/<version>-<hash>/lib64/   libcuda.so.580.159.04, libcuda.so.1 -> ..., libcuda.so -> ...
//                               /bin/     nvidia-smi, nvidia-debugdump
//                               /share/   vulkan/icd.d, glvnd/egl_vendor.d, nvidia/nvoptix.bin
//                               /etc/     OpenCL/vendors/nvidia.icd
//                               /list     what the above consists of
//
// The driver's files are found beside its libcuda.so.<version> by that suffix, not from a list of names, because each
// driver brings new ones. Files are hard links where the driver is on the same file system, else copies: one mount then
// serves a pod, where bind mounts would be 26 for each. A copy is made once per driver and costs its size (compute
// alone 371 MiB, everything 674), so graphics are left out of copies unless asked for.
//
// The bundle has its own copy or name of each file, so a driver package that is replaced while pods run takes nothing
// away from them. Only root can write there, and every source must be a regular file that only root can write.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

enum class DriverUse { kCompute, kVideo, kGraphics };

struct DriverFile {
  std::string source;  // absolute, on the node
  std::string name;    // in lib64, bin, share or etc: "lib64/libcuda.so.580.159.04"
  std::string soname;  // of libraries; "": none
  DriverUse use = DriverUse::kCompute;
  uint64_t size = 0;
  bool operator==(const DriverFile&) const = default;
};

// The driver as it is installed.
struct Driver {
  std::string version;  // "580.159.04"
  std::vector<DriverFile> files;
  // Sockets of the node's daemons that exist: nvidia-persistenced, nvidia-fabricmanager. Not given to pods: CUDA works
  // without them (decision 32), and each is a root daemon that would listen to strangers.
  std::vector<std::string> sockets;
};

struct DriverSearch {
  std::string root = "/";                // --driver-root: where the driver's own / is
  std::vector<std::string> directories;  // of libraries, below root; empty: the usual ones and those of its ld.so.cache
  // The version of the loaded kernel module; "": unknown. Of several installed drivers this one is taken.
  std::string kernel_version;
};

// "580.159.04" from the text of /proc/driver/nvidia/version; "" if there is none.
std::string KernelDriverVersion(const std::string& proc_version);

// kNotFound: no driver. kDenied: a file that others than root can write.
Result<Driver> FindDriver(const DriverSearch& search);

struct BundleLibrary {
  std::string name;    // what programs ask for: a SONAME, "libcuda.so", "libnvidia-ml.so"
  std::string target;  // the file in lib64
  bool operator==(const BundleLibrary&) const = default;
};

struct Bundle {
  std::string directory;  // absolute, on the node
  std::string version;
  std::vector<BundleLibrary> libraries;
  std::vector<std::string> programs;  // in bin
  bool opencl = false, vulkan = false, egl = false;

  // From a bundle's directory.
  static Result<Bundle> Read(const std::string& directory);
};

// Makes the bundle of `driver` below `parent` (created if missing, 0755), or finds it there. A bundle that was made
// halfway is made again. `uses`: of copies; a bundle of hard links has everything. Blocks: for seconds if it copies.
Result<Bundle> MakeBundle(const Driver& driver, const std::string& parent,
                          const std::set<DriverUse>& uses = {DriverUse::kCompute, DriverUse::kVideo});

// Removes all bundles below `parent` but those named (their directories, as in Bundle::directory). The agent names the
// current one and those of the attempts that are alive.
Status RemoveBundles(const std::string& parent, const std::set<std::string>& keep);

}  // namespace vrun::gpu
