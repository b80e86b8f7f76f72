// SPDX-License-Identifier: Apache-2.0
// The writable root: an overlay of the read-only view (lower) and the task's own directory (upper), made by host root.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// The working directory is the task directory; the views are attached at "lower" and "apart" in it, "upper" and "work"
// are used. Returns the overlay as a detached mount.
//
// Options: redirect_dir and metacopy make renames of directories and changes of attributes cheap, xino keeps inode
// numbers, volatile leaves syncing out. A kernel that refuses one of them gets the mount without it.
//
// Without `prepare_upper` the upper gets the view's owner, mode and times, for the attributes of the merged / are the
// upper's.
Result<UniqueFd> MountRoot(RootViews views, const PrepareUpper& prepare_upper);

// The directory inside the root that a mount will cover, made in the upper if the tree has none. Owner: the sandbox's
// root. Only hollow places (/proc /sys /dev /run /tmp) are made; they are never carried home. In a live root they have
// to be there.
Result<UniqueFd> MountPoint(int root, const char* name, const Spec& spec);

}  // namespace vrun::sandbox
