// SPDX-License-Identifier: Apache-2.0
// Copies a tree and all its content from a home into the store, through the same requests as a node. Skips content that
// the store has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/snapshots.pb.h"
#include "snapshots/manifest.h"
#include "store/store.h"
#include "tree/tree.h"
#include "vfs/content/source.h"

namespace vrun::node {
class ContentSource;
}

namespace vrun::snapshots {

// For one run. Everything happens on the caller's thread, except that the stream's thread writes arriving content to
// the store.
class Capture {
 public:
  struct Result {
    tree::Entry root;
    tree::DirectoryPtr directory;
    std::vector<store::ObjectId> stored;  // objects that were stored
    uint64_t sent_bytes = 0;              // content sent over the wire
    std::vector<std::string>
        changed;  // files that changed during the capture: the rest is stored, but the snapshot is incomplete
  };
  // The names of a tree, without content.
  struct Names {
    tree::Entry root;
    NewDirectories fresh;  // directories that `manifest` may lack
  };
  struct Wishes {
    std::vector<std::string> first;  // absolute paths whose files come first, in this order
    bool bear_losses = false;        // files in `changed` are left out: the snapshot is complete without them
  };
  // Return false to end the capture, because the caller is gone.
  using Progress = std::function<bool(const v1::SnapshotProgress&)>;

  // Owns none of them. `home_id`: the home that `source` asks. `progress` may run on another thread, a few times a
  // second. `vault` (null: none): content that it has is skipped too.
  Capture(node::ContentSource* source, store::Store* store, const Vault* vault, Manifest* manifest, std::string home_id,
          Progress progress);
  ~Capture();

  // `have`: a tree whose directories are all known to `manifest`; zero: none.
  vrun::Result<Names> FetchNames(const Digest& tree, const Digest& have);
  vrun::Result<Result> Run(const Digest& tree, const Names& names, const Wishes& wishes);

 private:
  struct File;
  using FilePtr = std::shared_ptr<File>;

  vrun::Result<tree::Entry> FetchRoot(const Digest& tree);
  vrun::Result<NewDirectories> FetchDirectories(const Digest& tree, const Digest& have);
  Status FetchFiles(const Digest& tree, const std::vector<NewFile>& files, bool bear_losses, Result* result);
  bool InStore(const store::ObjectId& id, uint64_t size) const;
  void Fetch(const Digest& tree, const FilePtr& file);
  void Arrived(const FilePtr& file, uint64_t offset, uint64_t length, vrun::Result<vfs::FetchedRange> range);
  Status Keep(const FilePtr& file, const vfs::FetchedRange& range);
  Status Complete(File* file);

  node::ContentSource* const source_;
  store::Store* const store_;
  const Vault* const vault_;
  Manifest* const manifest_;
  const std::string home_id_;
  const Progress progress_;

  Mutex mu_;
  CondVar changed_cv_;
  size_t under_way_ VRUN_GUARDED_BY(mu_) = 0;         // requests in progress
  std::vector<FilePtr> over_ VRUN_GUARDED_BY(mu_);    // finished, for Run's thread to process
  std::optional<Error> failed_ VRUN_GUARDED_BY(mu_);  // the first fatal error
  v1::SnapshotProgress told_ VRUN_GUARDED_BY(mu_);
  int64_t told_us_ VRUN_GUARDED_BY(mu_) = 0;
};

}  // namespace vrun::snapshots
