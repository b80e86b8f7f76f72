// SPDX-License-Identifier: Apache-2.0
// Handles a killed file system server of which a thread still waits for a reply from the server itself.
//
// A server accesses its own live views (vfs/live/kernel/live_push.h), and the kernel may then send it a request. Once
// such a request was read, the caller waits uninterruptibly (request_wait_answer in fs/fuse/dev.c). If the server dies
// before it replies, its process cannot exit until somebody does, and the next server starts only after that exit. So
// the process that holds its /dev/fuse replies in its place.
//
// The same happens if the thread waits for a lock that the kernel holds for somebody else's request: it pushes a page
// (FUSE_NOTIFY_STORE) that a job is reading, or tells of a name in a directory in which a job makes one.
#pragma once

#include <sys/types.h>

namespace vrun::node {

// Whether its first thread has exited while others have not. No event reports this (not even a pidfd, since Linux
// 6.15).
bool HasLostFirstThread(pid_t pid);

enum class Answering {
  kItself,    // requests that the dead server waits for: EINTR
  kHarmless,  // and others', with an error after which the kernel asks again: reads of several pages, and names
  kReads,     // and reads of one page: EINTR, which readers may see
};
// Answers such requests on the connection of `device`. Returns how many; 0 also if `device` is not a FUSE device. No
// other process may read from the connection. All other requests are resent to the next server, which asks for them
// (FUSE_NOTIFY_RESEND). Unread FORGETs are lost, so that server remembers some inodes for longer. Does not block.
int AnswerForDead(int device, pid_t dead, Answering answering);

}  // namespace vrun::node
