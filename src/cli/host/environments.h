// SPDX-License-Identifier: Apache-2.0
// Environments: whole root file systems that live on a storage host, for people without a machine of their own
// (`vctl env`, docs/decisions/0022).
//
// DIRECTORY/layers/N      a tree; nothing changes in it but in the one that is the upper of an environment
// DIRECTORY/envs/NAME/    env (the record), lock, work, init (who holds its mounts), home (of the vrun inside)
// DIRECTORY/.new-*/       one that is being made, held by its lock; what nobody holds is removed by the next command
//
// An environment is an overlay: a stack of layers that it may share with others, below an upper of its own. To clone is
// to put the upper onto both stacks and to give each a new, empty one, so it costs the same for any size. One that runs
// is held by a shared lock on its `lock`; cloning and deleting want it alone. Any process, as root; no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::cli {

struct Environment {
  std::string name;
  std::string from;              // "tar FILE", "clone OTHER": for people
  int64_t created_us = 0;        // wall clock
  uint64_t upper = 0;            // number of its layer
  std::vector<uint64_t> layers;  // below it, the topmost first
  bool in_use = false;
};

class Environments {
 public:
  // kDenied: not root. `directory` is made.
  static Result<Environments> Open(std::string directory);

  Result<std::vector<Environment>> List() const;
  Result<Environment> Find(const std::string& name) const;  // kNotFound
  // `fill` puts the tree into an empty directory; an error, or our end, leaves nothing behind. kExists.
  Status Create(const std::string& name, const std::string& from,
                const std::function<Status(const std::string&)>& fill);
  Status Clone(const std::string& source, const std::string& name);
  // `force`: also one that is in use: everything in it is killed.
  Status Delete(const std::string& name, bool force);

  // Holds an environment for as long as the descriptor is open.
  Result<UniqueFd> Use(const std::string& name) const;
  std::string PathOf(const std::string& name) const { return directory_ + "/envs/" + name; }
  std::string LayerPath(uint64_t layer) const { return directory_ + "/layers/" + std::to_string(layer); }
  // Bytes that it shares with nobody, and all that is below it.
  uint64_t OwnBytes(const Environment& environment) const;

  // A name that may be given. kInvalid says what it may be made of.
  static Status CheckName(const std::string& name);

 private:
  explicit Environments(std::string directory) : directory_(std::move(directory)) {}
  Result<UniqueFd> Lock() const;               // of all; held for moments
  Status Free(const std::string& name) const;  // kExists
  // Nobody uses it, nor its mounts, for as long as the descriptor is open. kExists: in use.
  Result<UniqueFd> Alone(const std::string& name, bool force) const;
  Result<uint64_t> NewUpper(uint64_t below) const;
  uint64_t NextLayer() const;
  Status Write(const std::string& path, const Environment& environment) const;
  Status Publish(Environment environment) const;
  void Sweep() const;  // with the lock held

  std::string directory_;
};

}  // namespace vrun::cli
