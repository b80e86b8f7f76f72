// SPDX-License-Identifier: Apache-2.0
// The three pipes of a command without a terminal.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::sandbox {

// [0] stdin, [1] stdout, [2] stderr. Ours are non-blocking.
struct Pipes {
  UniqueFd ours[3];
  UniqueFd theirs[3];
};

// Owned by this host uid and gid, so that the command may open /dev/stdout and the like. 256 KiB where allowed.
Result<Pipes> MakePipes(uint32_t host_uid, uint32_t host_gid);
// One such pipe; `output`: the command writes to it.
Status MakePipe(bool output, uint32_t host_uid, uint32_t host_gid, UniqueFd* ours, UniqueFd* theirs);

}  // namespace vrun::sandbox
