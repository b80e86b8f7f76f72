// SPDX-License-Identifier: Apache-2.0
// Handles a killed file system server of which a thread still waits for a reply from the server itself.
//
// A server accesses its own live views (vfs/live/kernel/live_push.h), and the kernel may then send it a request. Once
// such a request was read, the caller waits uninterruptibly (request_wait_answer in fs/fuse/dev.c). If the server dies
// before it replies, its process cannot exit until somebody does, and the next server starts only after that exit. So
// the process that holds its /dev/fuse replies in its place.
#pragma once

#include <sys/types.h>

namespace vrun::node {

// Whether its first thread has exited while others have not. No event reports this (not even a pidfd, since Linux
// 6.15).
bool HasLostFirstThread(pid_t pid);

// Answers with EINTR every request on the connection of `device` that `dead` waits for. Returns how many; 0 also if
// `device` is not a FUSE device. No other process may read from the connection. Other processes' requests are resent to
// the next server, which asks for them (FUSE_NOTIFY_RESEND). Unread FORGETs are lost, so that server remembers some
// inodes for longer. Does not block.
int AnswerForDead(int device, pid_t dead);

}  // namespace vrun::node
