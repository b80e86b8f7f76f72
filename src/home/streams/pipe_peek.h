// SPDX-License-Identifier: Apache-2.0
// Reads what a client's pipe or socket holds without consuming it.
//
// The pipe may be shared: in `list | while read x; do vrun echo $x; done` the shell reads on after vrun has ended. So
// home copies only the first bytes, and later consumes as many as the command has read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "home/streams/client_fd.h"

namespace vrun::home {

// The capacity of a pipe; a larger one needs a privilege that few processes have.
inline constexpr size_t kMostPeeked = 64 * 1024;

// True for a pipe or a stream socket.
bool CanPeek(const ClientFd& fd);

struct Peeked {
  size_t bytes = 0;
  bool ended = false;  // end of the stream after these bytes
};
// Copies up to n bytes, and at most kMostPeeked. EAGAIN as kUnavailable with that errno.
Result<Peeked> Peek(const ClientFd& fd, char* buffer, size_t n);

// Consumes the bytes of `expected`. False: the pipe had other bytes or none, because somebody else has read meanwhile.
bool TakePeeked(const ClientFd& fd, std::string_view expected);

// Whether an ancestor of process `pid` has this pipe open for reading and might read on where the command stopped.
bool SharedWithAncestors(int32_t pid, const ClientFd& fd);

// Lets one run at a time peek into a pipe; otherwise two commands would get the same bytes. Loop thread.
class PipeTurns {
 public:
  // False: another run has it.
  bool Take(const ClientFd& fd) { return taken_.insert({fd.dev, fd.ino}).second; }
  void GiveBack(const ClientFd& fd) { taken_.erase({fd.dev, fd.ino}); }

 private:
  std::set<std::pair<uint64_t, uint64_t>> taken_;
};

}  // namespace vrun::home
