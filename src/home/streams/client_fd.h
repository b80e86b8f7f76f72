// SPDX-License-Identifier: Apache-2.0
// A standard descriptor of a client, and how home may read or write it without a trace.
//
// The client's description is shared with its shell and with whatever else has it: its flags are never changed. Pipes
// and terminals are opened once more (/proc/self/fd/N), which gives a description of our own that can be non-blocking;
// sockets take MSG_DONTWAIT; for regular files the shared offset and O_APPEND matter, so the passed description itself
// is used, on a thread, as is everything else that cannot be opened again.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

struct ClientFd {
  enum class Access {
    kPolled,  // our own non-blocking description
    kSocket,  // the passed one, with MSG_DONTWAIT
    kThread,  // the passed one, blocking
    kNull,    // /dev/null: the passed one; never blocks, and cannot be polled
  };
  enum class Direction { kRead, kWrite };

  // Never fails: what cannot be opened again is kThread.
  static ClientFd Adopt(UniqueFd passed, Direction direction);

  UniqueFd fd;
  Access access = Access::kThread;
  bool terminal = false;
  bool regular = false;  // or a block device: has an offset
  uint64_t dev = 0;
  uint64_t ino = 0;

  // kPolled, kSocket, kNull. The count, 0 at the end of the stream (read), or an error; EAGAIN as kUnavailable with
  // that errno.
  Result<size_t> Read(char* buffer, size_t n) const;
  Result<size_t> Write(const char* data, size_t n) const;
};

}  // namespace vrun::home
