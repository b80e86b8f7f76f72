// SPDX-License-Identifier: Apache-2.0
// What lies over the root: /dev, /dev/shm, /sys, /tmp, /run, /etc/resolv.conf, /etc/hosts, made detached by host root
// in front of the clone; and the places for what only the inside can mount (/proc, /dev/pts, /dev/mqueue).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// A detached mount and the directory or file of the root (or of an earlier mount of the list) that it will cover.
struct PreparedMount {
  UniqueFd mount;
  UniqueFd target;
};

struct PreparedMounts {
  std::vector<PreparedMount> list;  // in order of attachment
  UniqueFd proc_target, pts_target, mqueue_target;
  UniqueFd dev;  // the tmpfs of /dev; /dev/null covers what is masked in /proc
};

// The working directory is the task directory ("tmp" in it becomes /tmp of a live root). `root` is the detached
// overlay.
Result<PreparedMounts> PrepareMounts(int root, const Spec& spec);

bool IsLink(int directory, const char* name);

// The text of a hosts file with `lines` and localhost behind it, without the names that it has already.
std::string HostsWith(const std::string& file, const std::string& lines);

}  // namespace vrun::sandbox
