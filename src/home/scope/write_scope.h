// SPDX-License-Identifier: Apache-2.0
// Where at home and with what privileges a job may write, whatever its node says: only into places that jobs see, and
// no setuid, setgid or file capability that home has not given itself, unless the configuration allows it.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/root/deny_list.h"
#include "proto/task.pb.h"
#include "tree/scan/mounts.h"

namespace vrun::home {

// One thread. Touches no file below the root, so a file system that hangs blocks nobody.
class WriteScope {
 public:
  explicit WriteScope(std::string root, std::string mountinfo = "/proc/self/mountinfo");

  // kDenied: jobs have their own /proc, /sys, /dev, /run and /tmp, and see no file system that is not mirrored. `path`:
  // in the root.
  Status Check(const std::string& path);

 private:
  const tree::MountTable* Mounts();

  const std::string root_, path_;
  UniqueFd mountinfo_;  // signals changes of the mount table
  std::optional<tree::MountTable> mounts_;
};

// What of `meta` the open file `fd` (O_PATH) may get. `before`: what had its name. Adds to `left_out` what it may not.
v1::Meta Permitted(v1::Meta meta, JobWrites allowed, int fd, const std::optional<struct stat>& before,
                   std::string* left_out);

}  // namespace vrun::home
