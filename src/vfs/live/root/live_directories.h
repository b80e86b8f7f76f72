// SPDX-License-Identifier: Apache-2.0
// Loads home's part of a live view's directories when it is needed.
//
// Thread safety: any thread.
#pragma once

#include "vfs/live/content/live_contents.h"

namespace vrun::vfs {

class LiveDirectories {
 public:
  using Then = std::function<void(Reply)>;

  // All must outlive it.
  LiveDirectories(Backend& backend, JournaledTree& tree, LiveContents& contents)
      : backend_(backend), tree_(tree), contents_(contents) {}

  // Runs `then` with home's part of the directory loaded, now or once it has arrived; on an error, answers the request
  // itself. `deadline`: monotonic; 0: in HomeNews::kMicros.
  void With(uint64_t nodeid, Reply reply, Then then, int64_t deadline = 0);
  // As With, and loads the child `name` too if it is a directory: its emptiness is known then.
  void WithChild(uint64_t nodeid, const std::string& name, Reply reply, Then then);
  // Installs an arrived part if it is still the current one.
  void Install(uint64_t nodeid, const Digest& digest, const LoadedDirectoryPtr& loaded);
  // With a TreeLock. Null: no such directory, or not loaded.
  LiveNode* FindLocked(uint64_t nodeid);

 private:
  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
};

}  // namespace vrun::vfs
