// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/root/home_trees.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "vfs/frozen/lazy_root.h"
#include "vfs/live/tree/live_advance.h"

namespace vrun::vfs {

Status HomeTrees::Advance(Dispatcher& dispatcher, const Digest& tree, uint64_t included, LivePush* push) {
  MutexLock advancing(advance_mutex_);
  VRUN_ASSIGN(const tree::Entry root, FetchRootEntry(backend_, tree));
  included_ = std::max(included_, included);
  return AdvanceLocked(dispatcher, tree, root, push);
}

Status HomeTrees::AdvanceAgain(Dispatcher& dispatcher, LivePush* push) {
  MutexLock advancing(advance_mutex_);
  return AdvanceLocked(dispatcher, tree_.HomeTreeNow(), tree::Entry(root_), push);
}

Status HomeTrees::AdvanceLocked(Dispatcher& dispatcher, const Digest& tree, const tree::Entry& root, LivePush* push) {
  LoadRestored();
  const auto in_memory = [this](const Digest& digest) { return backend_.directories().InMemory(digest); };
  DirectoryCache::Loaded have;
  LiveMerge::Missing missing;
  do {
    LiveNotices notices;
    std::vector<uint64_t> replaced;
    std::vector<std::function<void()>> waited;
    KernelNotices::Names moved;
    std::vector<std::string> paths;
    {
      const TreeLock lock(tree_);
      uint64_t included = included_, operation = 0;
      if (tree_.journaled()) {
        behind_ = included_ > acknowledged_;
        operation = std::min(included_, acknowledged_);
        included = tree_.ChangesInLocked(operation);
      }
      LiveMerge merge(tree_, included, operation, have, in_memory, !notices_.no_open(), claims_.ClaimedLocked());
      missing = merge.FindMissing(root);
      if (missing.empty()) {
        merge.Run(root);
        tree_.SetHomeTreeLocked(tree);
        root_ = root;
        missing = merge.wanted();
        replaced = merge.replaced();
        for (const LiveMerge::Moved& one : merge.moved()) {
          moved.emplace(one.parent, one.name);
          paths.push_back(one.path);
        }
        notices_.AddLocked(merge.notices());
        notices = notices_.untold();
        waited = tree_.news().ToldLocked();
        claims_.OthersLocked(merge.others());
        if (missing.empty()) claims_.ShownLocked(operation, &waited);
        KernelNotices::Names expire;
        claims_.PostponeLocked(dispatcher.can_expire(), &notices.names, &expire);
        moved.merge(expire);
      }
    }
    if (notices_.no_open()) {  // otherwise LiveOpens does it
      for (const uint64_t nodeid : replaced) contents_.Keep(nodeid);
    }
    const Status told = notices_.Tell(dispatcher, notices, waited, moved);
    {
      const TreeLock lock(tree_);
      claims_.ToldLocked();
    }
    VRUN_TRY(told);
    if (push != nullptr && !paths.empty()) push->LookUp(paths);
    if (!missing.empty()) VRUN_TRY(backend_.directories().GetAll(tree, missing, &have));
  } while (!missing.empty());
  return {};
}

// With the previous state of a directory, the kernel is notified only of differences, and listings under way continue.
void HomeTrees::LoadRestored() {
  if (!std::exchange(restored_, false)) return;
  std::vector<std::pair<uint64_t, Digest>> restored;
  {
    const TreeLock lock(tree_);
    tree_.ForEach([&](const LiveNode& node) {
      if (!node.is_directory() || !node.directory->restored || !LiveTree::NeedsLoading(node)) return;
      restored.emplace_back(node.nodeid, node.directory->digest);
    });
  }
  for (const auto& [nodeid, digest] : restored) {
    if (const LoadedDirectoryPtr before = backend_.directories().Find(digest)) {
      directories_.Install(nodeid, digest, before);
    }
  }
}

void HomeTrees::Acknowledge(uint64_t nodeid, const tree::FileVersion& version) {
  const TreeLock lock(tree_);
  if (LiveNode* node = tree_.Find(nodeid)) node->at_home = version;
}

void HomeTrees::AppliedLocked(LiveNode* node, const LiveStream::Applied& one) {
  tree_.Touch(node);
  if (one.before_ctime_ns == 0) {
    node->at_home = one.version;
    return;
  }
  // Home kept attributes and names of the replaced version. If that is the version we know, this one is its successor,
  // and a tree that contains it is where to read the file.
  tree::FileVersion before = one.version;
  before.ctime_ns = one.before_ctime_ns;
  const bool known = before == node->at_home || before == node->version;
  node->at_home = known ? one.version : tree::FileVersion{};
}

void HomeTrees::OnAcknowledged(uint64_t number, const std::vector<LiveStream::Applied>& applied) {
  bool again = false;
  std::vector<std::function<void()>> waited;
  {
    const TreeLock lock(tree_);
    (void)tree_.ChangeLocked();  // reserves room; works without it, because home repeats what it has
    if (LiveFrame* frame = tree_.FrameLocked()) frame->Acknowledged(number);
    for (const LiveStream::Applied& one : applied) {
      if (LiveNode* node = tree_.Find(one.node)) AppliedLocked(node, one);
    }
    acknowledged_ = std::max(acknowledged_, number);
    again = std::exchange(behind_, false);
    waited = tree_.news().ToldLocked();
    claims_.AcknowledgedLocked(number, applied, &waited);
  }
  for (const auto& waiter : waited) waiter();
  if (again) tree_.Released();
}

void HomeTrees::Restore(const LiveState& state) {
  const MutexLock lock(advance_mutex_);
  restored_ = true;
  acknowledged_ = state.acknowledged;
}

}  // namespace vrun::vfs
