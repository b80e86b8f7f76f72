// SPDX-License-Identifier: Apache-2.0
// The list of what a sandbox adds so that a pod can use its GPUs, whatever its root contains. Pure functions: the
// sandbox only carries the list out. Decision 32 has the measurements behind it.
//
// Two parts, because two processes know the facts:
//
//   agent       MakeInjection     devices, bundle, MPS, environment: all that does not depend on the root
//   vrund-task  AddForRoot        shadows of other drivers, ld.so.cache: what depends on the root
//
// The root is a lazy view. Each first lookup in it may wait for home, and the agent's loop thread must not wait, so
// vrund-task reads the facts (root_facts.h): it waits for this view anyway. A task without GPUs has no GpuInjection and
// does none of it.
//
// How a root is served. "Bundle" is /run/vrun/nvidia; /run is the sandbox's own in every root.
//
//   root                              the loader finds the bundle by
//   glibc with /etc/ld.so.cache       our cache, mounted over the root's; LD_LIBRARY_PATH
//   glibc without it, frozen          a cache of the bundle alone; LD_LIBRARY_PATH
//   glibc without it, live            LD_LIBRARY_PATH: no file can be made in the root
//   conda, virtual environments       as their root; a libcuda.so.1 in a RPATH is covered by ours
//   musl                              /etc/ld-musl-<machine>.path as with the cache, LD_LIBRARY_PATH. The driver itself
//                                     needs glibc: only with a compatibility library (gcompat) does it load
//   NixOS, programs of Nix            /run/opengl-driver/lib, LD_LIBRARY_PATH: their loader reads no cache
//   empty (one static program)        LD_LIBRARY_PATH; nothing is mounted over the root
//
// How the sandbox carries the list out:
//   1. devices, in its own /dev;
//   2. mounts, in order. An empty source is a new, empty tmpfs, which is made read-only, if so asked, after step 4;
//   3. files. Below /run and below such a tmpfs they are written there. Elsewhere in the root they are mounted over
//   what
//      is there, so nothing of them is carried home; `optional` as in the schema;
//   4. links, where the path does not exist;
//   5. environment, then prepend.
// Targets are resolved below the root as if it were / (openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS), once,
// and mounted by descriptor. What is below /proc is mounted after the sandbox's own procfs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/allotment.h"
#include "gpu/inject/driver_bundle.h"
#include "gpu/inject/root_facts.h"
#include "proto/common.pb.h"
#include "proto/supervisor.pb.h"

namespace vrun::gpu {

inline constexpr char kBundleInside[] = "/run/vrun/nvidia";
inline constexpr char kLibrariesInside[] = "/run/vrun/nvidia/lib64";
inline constexpr char kMpsPipesInside[] = "/run/vrun/mps";

// Majors of character devices. Only that of nvidia is fixed.
struct DeviceMajors {
  uint32_t nvidia = 195;
  uint32_t nvidia_uvm = 0;   // 0: the module is not loaded
  uint32_t nvidia_caps = 0;  // 0: this driver has no MIG
};
// From the text of /proc/devices.
DeviceMajors ParseDeviceMajors(std::string_view proc_devices);

// Parts of /proc/driver/nvidia, as read on the node. "" if a file is missing.
struct DriverProc {
  std::string version;
  std::string registry;
  std::string params;
};
// `directory`: /proc/driver/nvidia, or the same below a driver root.
DriverProc ReadDriverProc(const std::string& directory);

struct InjectionRequest {
  const std::vector<v1::Gpu>* gpus = nullptr;  // of the node: NodeFacts.gpus
  const Allotment* allotment = nullptr;
  const Bundle* bundle = nullptr;
  DeviceMajors majors;
  DriverProc proc;
  std::vector<std::string> gpu_information;  // of gpus/<bdf>/information, by number of the GPU; may be shorter
};

// kInvalid: the allotment does not fit the node (a number out of range, a share of two GPUs). kUnavailable: nvidia-uvm
// is not loaded, so that no CUDA program could start.
Result<v1::GpuInjection> MakeInjection(const InjectionRequest& request);

// Adds what the root needs. `environment`: the command's, NAME=value; what the user set himself is kept.
void AddForRoot(const Bundle& bundle, const RootFacts& root, const std::vector<std::string>& environment,
                v1::GpuInjection* injection);

// The bundle's directory on the node, for Bundle::Read; "" if `injection` mounts none.
std::string BundleDirectory(const v1::GpuInjection& injection);

// What vrund-task does for a task with GPUs: reads the bundle's list and the root's facts, then AddForRoot. `root`: a
// directory, the pod's view. Blocks on the view: it reads ld.so.cache (50 kB), looks up about 5 names, one more for
// each library of the driver that the cache has, and 2 in each directory of LD_LIBRARY_PATH, of CONDA_PREFIX and beside
// those of PATH that are no system's. On a local disk 0.2 ms.
Status CompleteForRoot(int root, bool frozen, const std::vector<std::string>& environment, v1::GpuInjection* injection);

}  // namespace vrun::gpu
