// SPDX-License-Identifier: Apache-2.0
// A view: one tree, mounted read-only, its content fetched as it is touched. Tasks get clones of the mount.
//
//   auto backend = Backend::Create({.home_id = id}, &source, &store);
//   auto view = View::Mount(backend, tree_digest, {.directory = "/var/lib/vrun/node/views/1", .ids = 100000});
//   UniqueFd mount = *(*view)->CloneMount();        // move_mount() it, or use it as an overlay's lower layer
//
// Everything is cached in the kernel for ever (names, absent names, attributes, listings, symlinks, pages); what
// changes between two trees is invalidated by Advance.
//
// A mount outlives the process that serves it: whoever keeps the descriptors of Handle() can have another process take
// it over, at any moment and without warning. Its users wait meanwhile and notice nothing. decisions/0007.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/hash/digest.h"
#include "base/id_map.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/content/backend.h"

namespace vrun::vfs {

struct ViewOptions {
  // An existing directory of this process's (private) mount namespace, on which the view is mounted.
  std::string directory;
  std::string fuse_device = "/dev/fuse";
  IdMap ids;  // of owners, from home's to the node's
  // Complete files from 128 KiB are read by the kernel straight from the store's file, where the kernel can
  // (Linux 6.9, the store not on a stacked file system). Costs a request for every open(); without it there is none.
  bool passthrough = true;
  // Extended attributes are served. Costs a request for each attribute asked for: the kernel does not cache them, and
  // an overlay asks for one for each file that it looks up. false: there are none, and the kernel asks for values once.
  bool xattrs = true;
  // The kernel enforces POSIX ACLs (one more request for each inode that is checked). Needs xattrs.
  bool posix_acls = false;
  // Small files that the store has are pushed into the kernel when files beside them are read, and what a trace says
  // will be read as soon as it is here.
  bool push = true;
  bool list_attributes = true;   // listings give attributes (READDIRPLUS)
  bool no_open = true;           // without passthrough files are opened without a request; directories always
  bool resend = true;            // false: as if the kernel could not send requests again (before Linux 6.9)
  unsigned threads = 2;          // readers of the device
  uint32_t read_ahead_kb = 128;  // of the mount; 0 leaves the kernel's 128
  // A file (or directory) of the tree changed at home before it was fetched, so that it cannot be read any more. Once a
  // file; on any thread, no lock held; must not destroy the view.
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
};

struct ViewStats {
  std::array<uint64_t, 64> requests{};  // by FUSE opcode
  uint64_t malformed = 0;               // packets refused
  uint64_t passthrough_opens = 0;
  uint64_t pushed_files = 0;         // or parts of them
  uint64_t inodes = 0;               // known to the kernel now
  bool passthrough_offered = false;  // by the kernel
};

// All that it takes to serve a mount on.
struct ViewHandle {
  UniqueFd device;  // /dev/fuse; while one of its duplicates is open, users wait instead of getting ENOTCONN
  UniqueFd mount;
  UniqueFd state;  // saved_view.h

  // The tree that it shows; an error, if it cannot be taken over.
  Result<Digest> Tree() const;
};

// Thread safety: any thread, but Advance, Mount and destruction one at a time.
class View {
 public:
  // Fetches the root entry and mounts. Blocks: call on a thread that the source's callbacks do not need. kUnsupported
  // where there is no /dev/fuse, kDenied without CAP_SYS_ADMIN, kUnavailable when home stays away.
  static Result<std::unique_ptr<View>> Mount(std::shared_ptr<Backend> backend, const Digest& tree, ViewOptions options);

  // Serves a mount that another process served, which is dead by now: all of it, every thread. In the mount namespace
  // in which the mount was made, with the same options. Blocks for directories that only home has. After an error the
  // mount's users get ENOTCONN once the handle's last duplicate is closed.
  static Result<std::unique_ptr<View>> TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                ViewOptions options);

  // Unmounts, aborts the connection (users of clones get ENOTCONN), joins the threads. Pending fetches of others go on.
  virtual ~View() = default;

  // A detached mount of the view for a task: open_tree(OPEN_TREE_CLONE).
  virtual Result<UniqueFd> CloneMount() const = 0;

  // Duplicates, for whoever is to keep them. kUnsupported where the kernel cannot send requests again (before
  // Linux 6.9): what was being answered when a server dies would wait for ever.
  virtual Result<ViewHandle> Handle() const = 0;

  // Serves `tree` from now on. REQUIRES: no task uses the view, no clone is attached. Everything that differs is
  // invalidated in the kernel, everything else stays cached there. Blocks for the changed directories (not on a thread
  // that the source's callbacks need). After an error the view serves the old tree as before.
  virtual Status Advance(const Digest& tree) = 0;

  virtual Digest tree() const = 0;
  virtual const std::string& directory() const = 0;
  virtual ViewStats stats() const = 0;
};

}  // namespace vrun::vfs
