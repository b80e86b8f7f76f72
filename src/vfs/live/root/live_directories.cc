// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/root/live_directories.h"

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "vfs/content/directory_cache.h"
#include "vfs/retry.h"

namespace vrun::vfs {

LiveNode* LiveDirectories::FindLocked(uint64_t nodeid) {
  LiveNode* node = tree_.Find(nodeid);
  return node != nullptr && node->is_directory() && !LiveTree::NeedsLoading(*node) ? node : nullptr;
}

void LiveDirectories::Install(uint64_t nodeid, const Digest& digest, const LoadedDirectoryPtr& loaded) {
  const TreeLock lock(tree_);
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr || !node->is_directory() || node->directory->digest != digest) return;
  if (LiveTree::NeedsLoading(*node)) LiveTree::SetLoaded(node, loaded);
}

void LiveDirectories::With(uint64_t nodeid, Reply reply, Then then, int64_t deadline) {
  Digest tree, digest;
  std::string path;
  uint64_t news = 0;
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || !node->is_directory()) {
      reply.Error(node == nullptr ? ESTALE : ENOTDIR);
      return;
    }
    if (LiveTree::NeedsLoading(*node)) {
      tree = tree_.home_tree();
      digest = node->directory->digest;
      path = node->HomePath();
      news = tree_.news().count();
    }
  }
  if (path.empty()) return then(std::move(reply));
  if (const LoadedDirectoryPtr loaded = backend_.directories().Find(digest)) {
    Install(nodeid, digest, loaded);
    return With(nodeid, std::move(reply), std::move(then), deadline);
  }
  if (deadline == 0) deadline = MonotonicMicros() + HomeNews::kMicros;
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  const auto came = [this, shared, nodeid, news, digest, path, deadline,
                     then = std::move(then)](const Result<LoadedDirectoryPtr>& loaded) {
    if (loaded) {
      Install(nodeid, digest, *loaded);
      With(nodeid, std::move(*shared), then, deadline);
    } else if (IsLost(loaded.error()) && MonotonicMicros() < deadline) {
      tree_.news().After(news, deadline,
                         [this, nodeid, shared, then, deadline] { With(nodeid, std::move(*shared), then, deadline); });
    } else {
      if (IsLost(loaded.error())) contents_.ReportLost(nodeid, path, loaded.error());
      shared->Error(ErrnoOf(loaded.error()));
    }
  };
  backend_.directories().Get(tree, path, digest, tree_.Guarded(came));
}

void LiveDirectories::WithChild(uint64_t nodeid, const std::string& name, Reply reply, Then then) {
  With(nodeid, std::move(reply), [this, nodeid, name, then = std::move(then)](Reply loaded) {
    uint64_t below = 0;
    {
      const TreeLock lock(tree_);
      LiveNode* directory = FindLocked(nodeid);
      const LiveNode* child = directory != nullptr ? tree_.Child(directory, name) : nullptr;
      if (child != nullptr && child->is_directory()) below = child->nodeid;
    }
    if (below == 0) return then(std::move(loaded));
    With(below, std::move(loaded), then);
  });
}

}  // namespace vrun::vfs
