// SPDX-License-Identifier: Apache-2.0
// Reads a command's writes from the upper directory of its overlay and turns them into operations that home applies one
// by one.
//
// Runs after every process of the task is dead and the overlay is unmounted. The upper no longer changes, so every pass
// produces the same operations with the same sequence numbers. Links only base and proto-lite (vrund-task).
//
// The overlay is mounted by the host's root with redirect_dir=on,metacopy=on,index=off. Order of the operations:
//   1. Renames of directories and of files whose data is still in the lower, with the directories that they need. An
//      entry in the way that moves elsewhere is first put aside as .vrun-JOB-N, in a directory that does not move.
//   2. Parents before children: new directories, files, links, metadata of files that kept their data. A directory that
//      is replaced by something else is emptied just before.
//   3. Children before parents: removals one by one (entries that the command did not see are not removed), then the
//      metadata of every directory that changed.
// An opaque directory over a lower directory keeps home's inode: step 3 removes the entries that are gone.
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
  std::string lower;         // the root as the command saw it before it wrote, read-only; the source of versions
  std::string apart;         // the apart view that was mounted, or "": it has the extended attributes of `lower`
  uint64_t job = 0;          // for temporary names
  IdMap ids;                 // maps the owners in `upper` and `lower`
  bool user_xattrs = false;  // mounted with userxattr: overlay attributes are user.overlay.*
  // never carried, including everything below
  std::vector<std::string> skip = {"/proc", "/sys", "/dev", "/run", "/tmp"};
};

class Carry {
 public:
  // Reads the renames recorded by the overlay; cheap when nothing was written.
  static Result<std::unique_ptr<Carry>> Open(CarryOptions options);
  virtual ~Carry() = default;

  // The next message, at most about 1 MiB; nullopt after the last one. kUnavailable: the lower cannot be read now; call
  // Restart, then Next again.
  virtual Result<std::optional<vrun::v1::WriteBack>> Next() = 0;

  // Continues after `after_sequence`. If that lies within a file's data, continues at the file's PutFile.
  virtual Status Restart(uint64_t after_sequence) = 0;

  // The totals of the whole series, to be sent after the last message.
  virtual vrun::v1::WriteBackEnd End() const = 0;
};

// Call on a new, empty upper directory before it is mounted. Copies owner, mode, times and ACL of the lower's root,
// because the upper is the root directory that the command sees. Also marks it, so that Carry can tell a change of "/"
// itself from a directory created by the node. Without the mark, no change of "/" itself is carried. `apart`: as in
// CarryOptions.
Status PrepareUpper(const std::string& upper, const std::string& lower, const std::string& apart,
                    bool user_xattrs = false);

}  // namespace vrun::node
