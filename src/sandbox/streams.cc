// SPDX-License-Identifier: Apache-2.0
#include "sandbox/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/files.h"

namespace vrun::sandbox {

Result<Pipes> MakePipes(uint32_t host_uid, uint32_t host_gid) {
  Pipes pipes;
  for (int i = 0; i < 3; ++i) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
    int ours = i == 0 ? 1 : 0;
    pipes.ours[i].Reset(ends[ours]);
    pipes.theirs[i].Reset(ends[1 - ours]);
    if (::fchown(ends[0], host_uid, host_gid) != 0) return ErrnoError("chown a pipe");
    ::fcntl(ends[0], F_SETPIPE_SZ, 256 * 1024);  // a wish: the user's share of pipe memory may be used up
    VRUN_TRY(SetNonBlocking(pipes.ours[i].get(), true));
  }
  return pipes;
}

}  // namespace vrun::sandbox
