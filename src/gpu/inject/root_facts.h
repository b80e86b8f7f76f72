// SPDX-License-Identifier: Apache-2.0
// What the injection must know of a pod's root, read through the view with few lookups and never by a walk: lazy views
// ask home for each new name.
//
// Everything read is data of the user: it is parsed with bounds and never executed. Paths are opened with openat2
// (RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS), so no link of the root leads out of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/inject/driver_bundle.h"

namespace vrun::gpu {

// A file of the root with the name of a driver's file.
struct StaleFile {
  std::string path;  // in the root, absolute; may be a symbolic link
  std::string name;  // the bundle's library or program: "libcuda.so.1", "nvidia-smi"
};

// musl's list of directories, by its machine: "/etc/ld-musl-x86_64.path".
const char* MuslPathFile();

struct RootFacts {
  bool frozen = true;                    // false: a live view, in which nothing can be made
  std::optional<std::string> ld_cache;   // bytes of /etc/ld.so.cache
  bool glibc = false;                    // it has glibc's loader for this machine
  bool musl = false;                     // it has musl's loader for this machine
  std::optional<std::string> musl_path;  // bytes of /etc/ld-musl-<machine>.path
  bool opencl_icd = false;               // it has /etc/OpenCL/vendors/nvidia.icd
  std::vector<StaleFile> stale;          // each file once, whatever its number of names
};

// `root`: a directory; stays open, the caller's. Never fails: what cannot be read is treated as absent, and the pod
// gets the bundle by LD_LIBRARY_PATH at least. Blocks on the view.
RootFacts ReadRootFacts(int root, bool frozen, const Bundle& bundle, const std::vector<std::string>& environment);

}  // namespace vrun::gpu
