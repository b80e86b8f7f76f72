// SPDX-License-Identifier: Apache-2.0
// Looks up names of a view before a run does. A name that the kernel knows costs the run nothing; otherwise each lookup
// waits for the server. An import looks up two thousand names.
//
// The kernel caches a name only when somebody looks it up by path; a server cannot push names. A lookup waits for the
// server, and a process that waits for its own answer cannot be killed, so the server must not do it itself. A child
// process does it. It is forked while the server has one thread, and forks once per list of names, so that a list that
// waits for home does not delay the others. All these processes die with the server. If one of them then waits for an
// answer that only the next server gives, nobody waits for that process.
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
  // Call while the process has one thread. Until there is work, the only cost is one waiting process.
  static Result<std::unique_ptr<Warmer>> Start();

  // `mount`: the root of a mount, in use until all names are looked up. `paths`: absolute, without symlinks on the way,
  // looked up in this order, each with the names that are usually looked up with it (NamesToLookUp). Returns at once.
  // Names that do not exist are ignored; the list is dropped if too many lists are under way.
  void LookUp(int mount, std::span<const std::string> paths);

 private:
  explicit Warmer(UniqueFd socket) : socket_(std::move(socket)) {}
  const UniqueFd socket_;
};

// Names relative to the root, in order, each after the names that a program looks up before it: for a library its
// soname, which is a symlink to it; for a compiled Python module its source, whose attributes are compared.
std::vector<std::string> NamesToLookUp(std::span<const std::string> paths);

}  // namespace vrun::vfs
