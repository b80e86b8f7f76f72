// SPDX-License-Identifier: Apache-2.0
// Environments: whole root file systems on a storage host, for people without a machine of their own (`vctl env`,
// docs/decisions/0022).
//
// DIRECTORY/layers/N      a tree; only a layer that is the upper of an environment changes
// DIRECTORY/envs/NAME/    env (the record), lock, work, init (the pid that holds its mounts), home (of the vrun inside)
// DIRECTORY/.new-*/       an environment being created, locked by its creator; the next command removes unlocked ones
//
// An environment is an overlay: its own upper above a stack of layers that it may share with others. A clone adds the
// upper to both stacks and gives each environment a new, empty upper, so it costs the same for any size. A running
// environment is held by a shared lock on its `lock`; cloning and deleting need it exclusively. Any process, as root;
// no threads.
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
  // Creates `directory`. kDenied: not root.
  static Result<Environments> Open(std::string directory);

  Result<std::vector<Environment>> List() const;
  Result<Environment> Find(const std::string& name) const;  // kNotFound
  // `fill` puts the tree into an empty directory. An error or a crash leaves nothing behind. kExists.
  Status Create(const std::string& name, const std::string& from,
                const std::function<Status(const std::string&)>& fill);
  Status Clone(const std::string& source, const std::string& name);
  // `force`: also one that is in use; everything that runs in it is killed.
  Status Delete(const std::string& name, bool force);

  // Keeps an environment in use while the descriptor is open.
  Result<UniqueFd> Use(const std::string& name) const;
  std::string PathOf(const std::string& name) const { return directory_ + "/envs/" + name; }
  std::string LayerPath(uint64_t layer) const { return directory_ + "/layers/" + std::to_string(layer); }
  // Disk bytes of its upper, which no other environment shares.
  uint64_t OwnBytes(const Environment& environment) const;

  // kInvalid says which characters are allowed.
  static Status CheckName(const std::string& name);

 private:
  explicit Environments(std::string directory) : directory_(std::move(directory)) {}
  Result<UniqueFd> Lock() const;               // of the whole directory; held only briefly
  Status Free(const std::string& name) const;  // kExists
  // While the descriptor is open, nobody else uses the environment or its mounts. kExists: in use.
  Result<UniqueFd> Alone(const std::string& name, bool force) const;
  Result<uint64_t> NewUpper(uint64_t below) const;
  uint64_t NextLayer() const;
  Status Write(const std::string& path, const Environment& environment) const;
  Status Publish(Environment environment) const;
  void Sweep() const;  // with the lock held

  std::string directory_;
};

}  // namespace vrun::cli
