// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/removed_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "store/format/object_id.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kForgotten = 3'000;      // microseconds; forgetting takes some ten
constexpr int64_t kMostHeld = 30'000'000;  // then home is told, whatever has arrived

}  // namespace

std::optional<RemovedFiles::Removed> RemovedFiles::LosesContentLocked(const LiveNode* node) const {
  const bool homes =
      tree_.journaled() && node != nullptr && S_ISREG(node->attributes.mode) && node->in_home_tree() && !node->file;
  if (!homes || node->opened() || node->attributes.size == 0 || node->lookups == 0 || node->names.size() > 1) return {};
  return Removed{node->nodeid, {tree_.home_tree(), node->HomePath()}, node->version, node->known_id};
}

void RemovedFiles::HoldLocked(const std::optional<Removed>& removed) {
  if (!removed || tree_.Find(removed->nodeid) == nullptr) return;
  const uint64_t number = tree_.stream().last();
  tree_.stream().Hold(number);
  held_[removed->nodeid] = number;
  backend_.timers().After(kForgotten, tree_.Guarded([this, number, removed = *removed] { Keep(removed, number); }));
}

void RemovedFiles::Keep(const Removed& removed, uint64_t number) {
  const uint64_t nodeid = removed.nodeid;
  {
    const TreeLock lock(tree_);
    if (!held_.contains(nodeid)) return;  // the kernel has forgotten the file
  }
  // Few files get here: most were not open.
  backend_.timers().After(kMostHeld, tree_.Guarded([this, number] { tree_.stream().Unhold(number); }));
  const std::shared_ptr<FileContent> content = backend_.files().Get(removed.version, removed.known_id);
  const bool whole = content->size() <= store::kWholeFileLimit && !content->ComesInParts(removed.place);
  const uint64_t length = whole ? content->size() : std::min(content->size(), FileContent::kPageBytes);
  const auto here = tree_.Guarded([this, nodeid, content] {
    uint64_t held = 0;
    {
      const TreeLock lock(tree_);
      if (notices_.no_open()) contents_.KeepLocked(nodeid, content);
      held = TakeHeldLocked(nodeid);
    }
    if (held != 0) tree_.stream().Unhold(held);
  });
  // The page may come from elsewhere; then home does not know yet that the rest is wanted.
  content->Ensure(removed.place, 0, length, [content, whole, place = removed.place, here](const Status& done) {
    if (!done || whole) return here();
    content->Borrow(place, here);
  });
}

uint64_t RemovedFiles::TakeHeldLocked(uint64_t nodeid) {
  const auto it = held_.find(nodeid);
  if (it == held_.end()) return 0;
  const uint64_t number = it->second;
  held_.erase(it);
  return number;
}

}  // namespace vrun::vfs
