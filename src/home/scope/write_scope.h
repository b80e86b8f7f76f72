// SPDX-License-Identifier: Apache-2.0
// Where at home and with what privileges a job may write, whatever its node says: only into places that jobs see, and
// no setuid, setgid or file capability that home has not given itself, and for root no owner to whom the place is
// foreign (owners.h), unless the configuration allows it.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/root/deny_list.h"
#include "home/scope/owners.h"
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

// A file at home that gets metadata.
struct Receiver {
  int fd;                             // O_PATH
  int directory;                      // that it is in
  std::optional<struct stat> before;  // what had its name
};

// What of `meta` the file may get. Adds to `left_out` what it may not, but the owner.
v1::Meta Permitted(v1::Meta meta, JobWrites allowed, const Owners& owners, const Receiver& file, std::string* left_out);

// Whether a file that is at home already may come into another directory as it is.
bool MayBring(const struct stat& file, JobWrites allowed, const Owners& owners, int directory);

}  // namespace vrun::home
