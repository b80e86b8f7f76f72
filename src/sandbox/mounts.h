// SPDX-License-Identifier: Apache-2.0
// The mounts over the root: /dev, /dev/shm, /sys, /tmp, /run, /etc/resolv.conf, /etc/hosts, created detached by host
// root before the clone. Also the mount points of what only the inside can mount (/proc, /dev/pts, /dev/mqueue).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/mounts/injection.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

struct PreparedMounts {
  std::vector<PreparedMount> list;  // in order of attachment
  std::vector<ProcMount> proc;      // for the procfs, which only the inside can mount
  UniqueFd proc_target, pts_target, mqueue_target;
  UniqueFd job_socket;  // listens at kJobSocketPath
  UniqueFd run;         // the tmpfs of /run
  UniqueFd dev;         // the tmpfs of /dev; its /dev/null covers the masked files of /proc
};

// Requires the task directory as working directory (its "tmp" becomes /tmp of a live root). `root` is the detached
// overlay.
Result<PreparedMounts> PrepareMounts(int root, const Spec& spec);

// Adds the directories of a live view that cover those of the root. Requires the task directory as working directory.
Status CoverLivePaths(UniqueFd live, int root, const std::vector<std::string>& paths, PreparedMounts* mounts);

// Replaces a file below /run, whose tmpfs is `run`: a reader sees the old or the new content.
Status ReplaceBelowRun(int run, const RunFile& file, uint32_t owner);
// Adds lines to the hosts file of a running sandbox, without names that it has. Requires the task directory as working
// directory. Does nothing if the sandbox has its root's own file.
Status AddToHosts(const std::string& lines);

bool IsLink(int directory, const char* name);

// The text of a hosts file, followed by `lines` and localhost, without names that it already has.
std::string HostsWith(const std::string& file, const std::string& lines);

}  // namespace vrun::sandbox
