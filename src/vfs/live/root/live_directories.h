// SPDX-License-Identifier: Apache-2.0
// Home's part of a live view's directories, loaded when it is needed.
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

  // Runs `then` with home's part of the directory loaded, now or once it has come; answers the error itself.
  // `deadline`: monotonic; 0: in HomeNews::kMicros.
  void With(uint64_t nodeid, Reply reply, Then then, int64_t deadline = 0);
  // The same, and of the directory `name` in it, if it is one: whether it is empty can be told then.
  void WithChild(uint64_t nodeid, const std::string& name, Reply reply, Then then);
  // It has come, if it is still what is wanted.
  void Install(uint64_t nodeid, const Digest& digest, const LoadedDirectoryPtr& loaded);
  // With a TreeLock. Null: none, or not loaded.
  LiveNode* FindLocked(uint64_t nodeid);

 private:
  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
};

}  // namespace vrun::vfs
