// SPDX-License-Identifier: Apache-2.0
// What a sandbox adds to its root for devices: nodes, mounts, files, links. The sandbox only carries the list out; who
// makes it knows what is needed (proto/supervisor.proto, GpuInjection).
//
// A source is a path of the node that only its root can change, opened once without magic links. A target is resolved
// below the job's root as if that were / (openat2, RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS), once, and mounted by
// descriptor. Nothing of the job's root is ever a source, and no path in it becomes a path of the node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/mounts/mount_api.h"

namespace vrun::sandbox {

struct Injection {
  struct Device {
    std::string path;  // below /dev
    uint32_t major = 0, minor = 0;
    uint32_t mode = 0666;
  };
  struct Mount {
    std::string source;  // "": a new, empty tmpfs
    std::string target;
    bool read_only = false;  // of a tmpfs: once the files and links are in it
    bool optional = false;   // left out if the target does not exist
  };
  // Written below /run or a tmpfs of this list; mounted over the root's file elsewhere.
  struct File {
    std::string path;
    std::string content;
    uint32_t mode = 0644;
    bool optional = false;
  };
  struct Link {  // left out if something is there
    std::string path;
    std::string target;
  };
  std::vector<Device> devices;
  std::vector<Mount> mounts;
  std::vector<File> files;
  std::vector<Link> links;
};

// A detached mount, and the directory or file that it will cover, in the root or in an earlier mount of the list.
struct PreparedMount {
  UniqueFd mount;
  UniqueFd target;
};
// The same for a target in a procfs that does not exist yet: `path` is relative to it. Left out if it is missing there.
struct ProcMount {
  UniqueFd mount;
  std::string path;
};

// kInvalid: a path that is not absolute, or has ".." or a NUL.
Status CheckInjection(const Injection& injection);

// Where the list is carried out. Descriptors are borrowed.
struct InjectionPlaces {
  int root = -1;
  int dev = -1, run = -1;   // the tmpfs of /dev and /run, not yet attached
  bool may_create = false;  // missing targets in the root are made: it is an overlay
  uint32_t owner = 0;       // the node's uid and gid of the sandbox's root
};

// Makes the nodes, files and links, and appends the mounts. Requires the task directory as working directory.
Status Inject(const Injection& injection, const InjectionPlaces& places, std::vector<PreparedMount>* mounts,
              std::vector<ProcMount>* proc_mounts);

// What the injection may have made in an overlay, which is not a change by the command: absolute paths.
std::vector<std::string> InjectedInRoot(const Injection& injection);

}  // namespace vrun::sandbox
