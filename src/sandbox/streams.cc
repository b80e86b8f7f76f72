// SPDX-License-Identifier: Apache-2.0
#include "sandbox/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/files.h"

namespace vrun::sandbox {

Result<Pipes> MakePipes(uint32_t host_uid, uint32_t host_gid) {
  Pipes pipes;
  for (int i = 0; i < 3; ++i) VRUN_TRY(MakePipe(i != 0, host_uid, host_gid, &pipes.ours[i], &pipes.theirs[i]));
  return pipes;
}

Status MakePipe(bool output, uint32_t host_uid, uint32_t host_gid, UniqueFd* ours, UniqueFd* theirs) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  ours->Reset(ends[output ? 0 : 1]);
  theirs->Reset(ends[output ? 1 : 0]);
  if (::fchown(ends[0], host_uid, host_gid) != 0) return ErrnoError("chown a pipe");
  ::fcntl(ends[0], F_SETPIPE_SZ, 256 * 1024);  // best effort: the user's share of pipe memory may be used up
  return SetNonBlocking(ours->get(), true);
}

}  // namespace vrun::sandbox
