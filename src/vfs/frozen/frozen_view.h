// SPDX-License-Identifier: Apache-2.0
// A frozen view: one tree, mounted read-only, its content fetched on first use. Tasks get clones of the mount.
//
//   auto backend = Backend::Create({.home_id = id}, &source, &store);
//   auto view = FrozenView::Mount(backend, tree_digest, {.directory = "/var/lib/vrun/node/views/1", .ids = 100000});
//   UniqueFd mount = *(*view)->CloneMount();        // move_mount() it, or use it as an overlay's lower layer
//
// The kernel caches everything for ever (names, absent names, attributes, listings, symlinks, pages). Advance
// invalidates what differs between two trees.
//
// A mount outlives its server process: another process that has the descriptors of Handle() can take it over, at any
// moment and without warning. Its users wait meanwhile and notice nothing. decisions/0007.
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
  IdMap ids;  // maps owners from home's ids to the node's
  // The kernel reads complete files from 128 KiB on directly from the store's file, where it can (Linux 6.9, the store
  // not on a stacked file system). Costs a request for every open(); without it an open costs none.
  bool passthrough = true;
  // Serves extended attributes. Costs a request for each attribute asked for: the kernel does not cache them, and an
  // overlay asks for one for each file that it looks up. false: there are none, and the kernel stops asking after the
  // first request.
  bool xattrs = true;
  // The kernel enforces POSIX ACLs (one more request per inode that is checked). Needs xattrs.
  bool posix_acls = false;
  // Pushes small files of the store into the kernel when files beside them are read, and content that a trace lists as
  // soon as it arrives.
  bool push = true;
  bool list_attributes = true;   // listings give attributes (READDIRPLUS)
  bool no_open = true;           // without passthrough a file is opened without a request; a directory always is
  bool resend = true;            // false: behave as if the kernel could not resend requests (Linux before 6.9)
  unsigned threads = 2;          // threads that read the device
  uint32_t read_ahead_kb = 128;  // of the mount; 0 leaves the kernel's 128
  // A file (or directory) of the tree changed at home before it was fetched, so it cannot be read any more. Called once
  // per file, on any thread, with no lock held; must not destroy the view.
  std::function<void(const std::string& path, const std::string& reason)> on_content_lost;
};

struct ViewStats {
  std::array<uint64_t, 64> requests{};  // by FUSE opcode
  uint64_t malformed = 0;               // refused packets
  uint64_t passthrough_opens = 0;
  uint64_t pushed_files = 0;         // or parts of files
  uint64_t inodes = 0;               // that the kernel knows now
  bool passthrough_offered = false;  // by the kernel
};

// Everything needed to take over a mount.
struct ViewHandle {
  UniqueFd device;  // /dev/fuse; while a duplicate of it is open, users wait instead of getting ENOTCONN
  UniqueFd mount;
  UniqueFd state;  // saved_view.h

  // The tree that the view shows; an error if the view cannot be taken over.
  Result<Digest> Tree() const;
};

// Thread safety: any thread, except that Advance, Mount and destruction must not overlap.
class FrozenView {
 public:
  // Fetches the root entry and mounts. Blocks: do not call on a thread that the source's callbacks need. kUnsupported
  // if there is no /dev/fuse, kDenied without CAP_SYS_ADMIN, kUnavailable if home stays unreachable.
  static Result<std::unique_ptr<FrozenView>> Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                   ViewOptions options);

  // Takes over a mount whose server process is dead, with all its threads. Call in the mount namespace in which the
  // mount was made, with the same options. Blocks while directories that only home has are fetched. After an error the
  // mount's users get ENOTCONN once the handle's last duplicate is closed.
  static Result<std::unique_ptr<FrozenView>> TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                      ViewOptions options);

  // Unmounts, aborts the connection (users of clones get ENOTCONN) and joins the threads. Fetches for others continue.
  virtual ~FrozenView() = default;

  // A detached mount of the view for a task: open_tree(OPEN_TREE_CLONE).
  virtual Result<UniqueFd> CloneMount() const = 0;

  // Duplicates, for the process that keeps them. kUnsupported if the kernel cannot resend requests (before Linux 6.9):
  // a request read by a server that then dies would never be answered.
  virtual Result<ViewHandle> Handle() const = 0;

  // Switches to `tree`. REQUIRES: no task uses the view, no clone is attached. Invalidates everything that differs in
  // the kernel; the rest stays cached there. Blocks for the changed directories (not on a thread that the source's
  // callbacks need). After an error the view serves the old tree as before.
  virtual Status Advance(const Digest& tree) = 0;

  virtual Digest tree() const = 0;
  virtual const std::string& directory() const = 0;
  virtual ViewStats stats() const = 0;
};

}  // namespace vrun::vfs
