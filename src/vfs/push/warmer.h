// SPDX-License-Identifier: Apache-2.0
// Asks for names of a view before a run does: one that the kernel knows costs the run nothing, one that it has to ask
// for a wait for the server. An import asks for two thousand.
//
// The kernel remembers a name for whoever asks for it by its path, and takes none unasked. Asking makes one wait for
// the server, so it is not the server that asks: a process that waits for its own answer cannot be killed. It is a
// child, which is forked while the server has one thread, and which forks once for each list of names, so that one that
// waits for home holds up no other. All of them die with the server; if one then waits for an answer until the next
// server gives it, nobody waits for that one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

// Thread safety: any thread.
class Warmer {
 public:
  // Call it while the process has one thread. A process that waits is all that it costs until there is something to do.
  static Result<std::unique_ptr<Warmer>> Start();

  // `mount`: the root of a mount, in use until all names were asked for. `paths`, absolute: in this order, each with
  // what is usually asked for with it (NamesToLookUp); not through a symlink. Returns at once. Nothing is said of names
  // that are not there; not done where too many lists are under way.
  void LookUp(int mount, std::span<const std::string> paths);

 private:
  explicit Warmer(UniqueFd socket) : socket_(std::move(socket)) {}
  const UniqueFd socket_;
};

// `paths` relative to the root, in order, each after what is asked for before it: for a library its soname, which is a
// symlink to it; for a compiled Python module its source, whose attributes are compared.
std::vector<std::string> NamesToLookUp(std::span<const std::string> paths);

}  // namespace vrun::vfs
