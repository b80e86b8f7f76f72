// SPDX-License-Identifier: Apache-2.0
// LiveRoot: files of home's that a job removes, or renames another over, while it has them open and has read nothing.
//
// Nothing tells which files are open (docs/decisions/0019). But the kernel forgets a file without names at once unless
// somebody has it open, and until home hears of the removal it has the content. So home hears of it when the kernel has
// forgotten the file; if it has not after kForgotten, as much is fetched as a first read would fetch: all of what is
// small, a page of what is large, of which home then holds the rest (home/lent_files.h). A server that dies meanwhile
// leaves nothing held: the next one tells home at once.
#include <algorithm>
#include <utility>

#include "vfs/live_root.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kForgotten = 3'000;      // microseconds; it takes some ten
constexpr int64_t kMostHeld = 30'000'000;  // then home hears of it whatever has come

}  // namespace

// Before it loses its last name.
std::optional<LiveRoot::Removed> LiveRoot::LosesContentLocked(const LiveNode* node) const {
  const bool homes = journal_ != nullptr && node != nullptr && S_ISREG(node->attributes.mode) && node->named_at_home &&
                     node->home && !node->file;
  if (!homes || node->opened || node->attributes.size == 0 || node->lookups == 0 || node->names.size() > 1) return {};
  return Removed{node->nodeid, {home_tree_, node->HomePath()}, node->version, node->known_id};
}

// It has lost it, which the last operation tells.
void LiveRoot::HoldRemovedLocked(const std::optional<Removed>& removed) {
  if (!removed || tree_.Find(removed->nodeid) == nullptr) return;
  const uint64_t number = stream_->last();
  stream_->Hold(number);
  held_[removed->nodeid] = number;
  backend_.timers().After(kForgotten, [this, gate = gate_, number, removed = *removed] {
    const Gate::Pass pass(gate.get());
    if (pass) KeepRemoved(removed, number);
  });
}

void LiveRoot::KeepRemoved(const Removed& removed, uint64_t number) {
  const uint64_t nodeid = removed.nodeid;
  {
    const TreeLock lock(*this);
    if (!held_.contains(nodeid)) return;  // it is forgotten
  }
  // Few come so far: most were not open.
  backend_.timers().After(kMostHeld, [this, gate = gate_, number] {
    const Gate::Pass pass(gate.get());
    if (pass) stream_->Unhold(number);
  });
  const std::shared_ptr<FileContent> content = backend_.files().Get(removed.version, removed.known_id);
  const bool whole = content->size() <= store::kWholeFileLimit && !content->ComesInParts(removed.place);
  const uint64_t length = whole ? content->size() : std::min(content->size(), FileContent::kPageBytes);
  const auto here = [this, gate = gate_, nodeid, content] {
    const Gate::Pass pass(gate.get());
    if (!pass) return;
    uint64_t held = 0;
    {
      const TreeLock lock(*this);
      if (no_open_ && tree_.Find(nodeid) != nullptr) kept_[nodeid] = content;
      held = TakeHeldLocked(nodeid);
    }
    if (held != 0) stream_->Unhold(held);
  };
  // A page may come from elsewhere, and then home has not heard that the rest is wanted.
  content->Ensure(removed.place, 0, length, [content, whole, place = removed.place, here](const Status& done) {
    if (!done || whole) return here();
    content->Borrow(place, here);
  });
}

uint64_t LiveRoot::TakeHeldLocked(uint64_t nodeid) {
  const auto it = held_.find(nodeid);
  if (it == held_.end()) return 0;
  const uint64_t number = it->second;
  held_.erase(it);
  return number;
}

}  // namespace vrun::vfs
