// SPDX-License-Identifier: Apache-2.0
// The writable root: an overlay of the read-only view (lower) and the task's own directory (upper), mounted by host
// root.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Requires the task directory as working directory. Attaches the views at "lower" and "apart" there and uses "upper"
// and "work". Returns the overlay as a detached mount.
//
// Options: redirect_dir and metacopy make directory renames and attribute changes cheap, xino keeps inode numbers,
// volatile skips syncing. If the kernel refuses an option, it mounts without it.
//
// Without `prepare_upper`, the upper gets the view's owner, mode and times, because the merged / has the upper's
// attributes.
Result<UniqueFd> MountRoot(RootViews views, const PrepareUpper& prepare_upper);

// The directory inside the root that a mount will cover. Created in the upper if the tree has none, with the sandbox's
// root as owner. Only hollow places (/proc /sys /dev /run /tmp) are created; they are never carried home. In a live
// root they must exist.
Result<UniqueFd> MountPoint(int root, const char* name, const Spec& spec);

}  // namespace vrun::sandbox
