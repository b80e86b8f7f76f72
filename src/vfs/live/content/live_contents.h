// SPDX-License-Identifier: Apache-2.0
// Where the content of a live view's files is: written here, or at home.
//
// A file of home that is changed in place becomes a LiveFile over home's content. Missing parts are fetched when needed
// (Need), from wherever home has them by then.
//
// Thread safety: any thread. "Locked": with a TreeLock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "vfs/byte_ranges.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/tree/journaled_tree.h"

namespace vrun::vfs {

// A node's content; both null: none, or no such node.
struct NodeContent {
  std::shared_ptr<LiveFile> file;
  std::shared_ptr<FileContent> home;
  FileContent::Place place;
  bool sparse = false;   // `home` has holes, as far as its attributes tell
  uint64_t news = 0;     // HomeNews::count() at that time
  bool opened = false;   // LiveNode::opened
  bool fetched = false;  // what is read was requested, and arrived
};

// For a request that must wait: returns a callback that answers it with an error, or continues with `then`.
std::function<void(int error)> Waiting(Reply reply, std::function<void(Reply)> then);

class LiveContents {
 public:
  using OnLost = std::function<void(const std::string& path, const std::string& reason)>;

  // `backend` and `tree` must outlive it.
  LiveContents(Backend& backend, JournaledTree& tree, OnLost on_lost)
      : backend_(backend), tree_(tree), on_lost_(std::move(on_lost)) {}

  NodeContent Of(uint64_t nodeid);
  // LiveFile::Need, from wherever home has the content by now. Reports lost content and fails with EIO, unless
  // `quietly`: then `done` gets LiveFile::kLost. `deadline`: monotonic; 0: in HomeNews::kMicros.
  void Need(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, ByteRange range, bool overwrite,
            std::function<void(int error)> done, bool quietly = false, int64_t deadline = 0);
  // Reports once per node.
  void ReportLost(uint64_t nodeid, const std::string& path, const Error& error);
  void TellLost(const std::string& path, const std::string& reason) const {
    if (on_lost_) on_lost_(path, reason);
  }

  // With no-open nobody knows whether a node without names is open. So home's content of it is not evicted before the
  // kernel has forgotten the node.
  void Keep(uint64_t nodeid);
  void KeepLocked(uint64_t nodeid, std::shared_ptr<FileContent> content);  // if the node exists
  // Release the result without the lock.
  std::shared_ptr<FileContent> TakeKeptLocked(uint64_t nodeid);

  // As LiveView.
  uint64_t DropWritten(uint64_t rest_bytes);

 private:
  // Home has what was written to the node, as the version in the tree.
  static bool IsHomes(const LiveNode& node);

  Backend& backend_;
  JournaledTree& tree_;
  const OnLost on_lost_;
  std::unordered_map<uint64_t, std::shared_ptr<FileContent>> kept_;  // by node; guarded by the tree's lock
};

}  // namespace vrun::vfs
