// SPDX-License-Identifier: Apache-2.0
// A standard descriptor of a client, read and written without side effects visible to others.
//
// The client's file description is shared with its shell and other processes: its flags are never changed. Pipes and
// terminals are reopened (/proc/self/fd/N), which gives a description of our own that can be non-blocking. Sockets use
// MSG_DONTWAIT. For regular files the shared offset and O_APPEND matter, so the passed description is used, on a
// thread; likewise anything that cannot be reopened.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

struct ClientFd {
  enum class Access {
    kPolled,  // our own non-blocking description
    kSocket,  // the passed description, with MSG_DONTWAIT
    kThread,  // the passed description, blocking
    kNull,    // /dev/null: the passed description; never blocks, and cannot be polled
  };
  enum class Direction { kRead, kWrite };

  // Never fails: what cannot be reopened is kThread.
  static ClientFd Adopt(UniqueFd passed, Direction direction);

  UniqueFd fd;
  Access access = Access::kThread;
  bool terminal = false;
  bool regular = false;  // or a block device: has an offset
  uint64_t dev = 0;
  uint64_t ino = 0;

  // For kPolled, kSocket, kNull. Returns the count (0: end of the stream, on read) or an error; EAGAIN as kUnavailable
  // with that errno.
  Result<size_t> Read(char* buffer, size_t n) const;
  Result<size_t> Write(const char* data, size_t n) const;
};

}  // namespace vrun::home
