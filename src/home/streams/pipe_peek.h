// SPDX-License-Identifier: Apache-2.0
// Looking at what a client's pipe or socket holds without taking it.
//
// The pipe may be shared: in `list | while read x; do vrun echo $x; done` the shell reads on when vrun has ended. So
// home only copies the first bytes, and takes from the pipe what the command turns out to have read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "home/streams/client_fd.h"

namespace vrun::home {

// No pipe holds more without a privilege that few have.
inline constexpr size_t kMostPeeked = 64 * 1024;

// A pipe, or a socket of a stream.
bool CanPeek(const ClientFd& fd);

struct Peeked {
  size_t bytes = 0;
  bool ended = false;  // nothing follows these bytes
};
// Copies up to n bytes, and at most kMostPeeked. EAGAIN as kUnavailable with that errno.
Result<Peeked> Peek(const ClientFd& fd, char* buffer, size_t n);

// Takes as many bytes as `expected` has. False: others came, or none: somebody else has read meanwhile.
bool TakePeeked(const ClientFd& fd, std::string_view expected);

// Does one of the processes above `pid` have this pipe open for reading? It would read on where the command stopped.
bool SharedWithAncestors(int32_t pid, const ClientFd& fd);

// Who may look into a pipe: one run at a time, or two commands would get the same bytes. Loop thread.
class PipeTurns {
 public:
  // False: somebody else has it.
  bool Take(const ClientFd& fd) { return taken_.insert({fd.dev, fd.ino}).second; }
  void GiveBack(const ClientFd& fd) { taken_.erase({fd.dev, fd.ino}); }

 private:
  std::set<std::pair<uint64_t, uint64_t>> taken_;
};

}  // namespace vrun::home
