// SPDX-License-Identifier: Apache-2.0
// File handles that the kernel makes for files of a FUSE file system (FILEID_INO64_GEN, fs/fuse/inode.c). They contain
// the node id that the server gave. Our node ids need no generation: none is used twice.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace vrun::vfs {

// 0: not a file of a FUSE file system.
uint64_t NodeOf(int fd);

// Opens a file that the kernel knows, for reading. `mount`: any descriptor of the file system except an O_PATH one.
// Causes no request where the kernel does not ask for opens, so a server may call it for its own mount. On failure
// errno is set; ESTALE: the kernel does not know the file; EPERM: not the machine's root (CAP_DAC_READ_SEARCH).
UniqueFd OpenNode(int mount, uint64_t nodeid);

}  // namespace vrun::vfs
