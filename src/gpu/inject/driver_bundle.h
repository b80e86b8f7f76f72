// SPDX-License-Identifier: Apache-2.0
// The files of the GPU driver (driver.h), gathered in one read-only directory that is mounted into pods.
//
//   <directory>/<version>-<hash>/lib64/   libcuda.so.580.159.04, libcuda.so.1 -> ..., libcuda.so -> ...
//                               /bin/     nvidia-smi, nvidia-debugdump
//                               /share/   vulkan/icd.d, glvnd/egl_vendor.d, nvidia/nvoptix.bin
//                               /etc/     OpenCL/vendors/nvidia.icd
//                               /list     what the above consists of
//
// Files are hard links where the driver is on the same file system, else copies: one mount then serves a pod, where
// bind mounts would be 26 for each. A copy is made once per driver and costs its size (compute alone 371 MiB,
// everything 674), so graphics are left out of copies unless asked for.
//
// The bundle has its own copy or name of each file, so a driver package that is replaced while pods run takes nothing
// away from them.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/inject/driver.h"

namespace vrun::gpu {

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
  std::vector<std::string> data;      // other files: "etc/OpenCL/vendors/nvidia.icd"

  bool Has(std::string_view data_file) const;

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
