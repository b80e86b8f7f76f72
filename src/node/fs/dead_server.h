// SPDX-License-Identifier: Apache-2.0
// A file system server that was killed, and of which a thread waits for an answer of the server itself.
//
// A server uses its own live views in one way (vfs/live/kernel/live_push.h), and the kernel may then ask it something.
// A request that was read is waited for uninterruptibly (request_wait_answer in fs/fuse/dev.c): if the server dies in
// between, its process does not end before somebody answers, and the next server is not started before it has ended. So
// whoever has its /dev/fuse answers for it.
#pragma once

#include <sys/types.h>

namespace vrun::node {

// Its first thread has ended, and others have not. Nothing tells of it (a pidfd does not either, since Linux 6.15).
bool HasLostFirstThread(pid_t pid);

// Answers, with EINTR, what `dead` waits for at the connection of `device`; how many that were. None: `device` is no
// FUSE device, or nothing waits there. Nobody else may read from the connection. What others wait for is sent to the
// next server, which asks for it (FUSE_NOTIFY_RESEND); FORGETs that were not read are lost: that server remembers some
// inodes for longer. Does not block.
int AnswerForDead(int device, pid_t dead);

}  // namespace vrun::node
