// SPDX-License-Identifier: Apache-2.0
// What a command wrote, read from the upper directory of its overlay and told as operations that home applies one by
// one.
//
// Used when every process of the task is dead and the overlay is unmounted: the upper is frozen, so the same operations
// with the same sequence numbers come out however often it is asked. Links only base and proto-lite (vrund-task).
//
// The overlay is mounted by the host's root with redirect_dir=on,metacopy=on,index=off. Order of the operations:
//   1. Renames of directories and of files whose data is still the lower's, with the directories that they need. What
//   is in
//      the way and goes elsewhere is put aside under the name .vrun-JOB-N in a directory that stays where it is.
//   2. Parents before children: new directories, files, links, metadata of files that kept their data. A directory
//   whose
//      name becomes something else is emptied just before.
//   3. Children before parents: removals one by one (what the command did not see is not removed), then the metadata of
//      every directory that changed.
// An opaque directory over one of the lower's keeps home's inode: all that it does not have any more is removed in 3.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/id_map.h"
#include "base/result.h"
#include "proto/task.pb.h"

namespace vrun::node {

struct CarryOptions {
  std::string upper;         // the overlay's upper directory
  std::string lower;         // the root as the command saw it before it wrote, read-only: versions come from here
  std::string apart;         // what of it was mounted above, or "": the extended attributes of `lower` are there
  uint64_t job = 0;          // for temporary names
  IdMap ids;                 // of owners in `upper` and `lower`
  bool user_xattrs = false;  // mounted with userxattr: the overlay's attributes are user.overlay.*
  std::vector<std::string> skip = {"/proc", "/sys", "/dev", "/run", "/tmp"};  // never carried, with all below
};

class Carry {
 public:
  // Reads where the overlay renamed things; cheap when nothing was written.
  static Result<std::unique_ptr<Carry>> Open(CarryOptions options);
  virtual ~Carry() = default;

  // The next message, at most about 1 MiB; nullopt after the last one. kUnavailable: the lower is gone for now;
  // Restart, then Next, may succeed.
  virtual Result<std::optional<vrun::v1::WriteBack>> Next() = 0;

  // The next message will be the one after `after_sequence`, or, when that lies within a file's data, the file's
  // PutFile.
  virtual Status Restart(uint64_t after_sequence) = 0;

  // To be sent after the last message: the totals of the whole series.
  virtual vrun::v1::WriteBackEnd End() const = 0;
};

// To be called on a new, empty upper directory before it is mounted: gives it owner, mode, times and ACL of the lower's
// root (it is the root directory that the command sees) and marks it, so that Carry may tell a change of "/" itself
// from a directory that was made by the node. Without the mark nothing about "/" itself is carried. `apart`: as in
// CarryOptions.
Status PrepareUpper(const std::string& upper, const std::string& lower, const std::string& apart,
                    bool user_xattrs = false);

}  // namespace vrun::node
