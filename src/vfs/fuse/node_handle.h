// SPDX-License-Identifier: Apache-2.0
// The file handles that the kernel makes for files of a FUSE file system (FILEID_INO64_GEN, fs/fuse/inode.c): they hold
// the node id that its server gave. Ours has no generations: a node id is never used twice.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace vrun::vfs {

// 0: not a file of a FUSE file system.
uint64_t NodeOf(int fd);

// Opens a file that the kernel knows, for reading; `mount`: any descriptor of the file system but an O_PATH one. Costs
// no request where opens are not asked for, so a server may call it for its own mount. Not open: errno says why;
// ESTALE: the kernel does not know it; EPERM: not the machine's root (CAP_DAC_READ_SEARCH).
UniqueFd OpenNode(int mount, uint64_t nodeid);

}  // namespace vrun::vfs
