// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/kernel/kernel_notices.h"

#include <algorithm>
#include <cerrno>

namespace vrun::vfs {
namespace {

constexpr uint64_t kAbsentSeconds = 3;     // for absent names beyond the limit of notes
constexpr uint64_t kNameRoom = 16 * 1024;  // in the journal, per looked-up name with its attributes

}  // namespace

// --- what it may cache -----------------------------------------------------------------------------------------------

// TTL 0 while the journal is behind: a successor could not invalidate these entries.
uint64_t KernelNotices::ValidSeconds() const {
  return tree_.RoomForReading() >= kNameRoom && !doubt_.doubted() ? kForeverSeconds : 0;
}

uint64_t KernelNotices::AbsentSecondsLocked(uint64_t directory, std::string_view name) {
  if (doubt_.doubted()) return 0;
  switch (doubt_.NoteAbsent(directory, name)) {
    case LiveDoubt::Noted::kFull: return std::min(kAbsentSeconds, ValidSeconds());
    case LiveDoubt::Noted::kNew:
      if (LiveFrame* frame = tree_.FrameLocked()) frame->Absent(directory, name);
      break;
    case LiveDoubt::Noted::kBefore: break;
  }
  return ValidSeconds();
}

void KernelNotices::AfterDoubt(Reply reply, std::function<void(Reply)> then) {
  if (!doubt_.doubted()) return then(std::move(reply));
  const auto shared = std::make_shared<Reply>(std::move(reply));
  doubt_.After([&shared] { shared->Suspend(); },
               tree_.Guarded([shared, then = std::move(then)] { then(std::move(*shared)); }));
}

void KernelNotices::Doubt(Dispatcher& dispatcher, bool doubt) {
  if (!doubt) {
    doubt_.End();
    return;
  }
  doubt_.Begin();  // first: from now on answers are not cached
  LiveNotices old;
  size_t absent = 0;
  {
    const TreeLock lock(tree_);
    old.names = doubt_.TakeAbsent();
    absent = old.names.size();
    tree_.ForEach([&](const LiveNode& node) {
      if (node.lookups == 0 && node.nodeid != LiveTree::kRootId) return;
      for (const LiveName& link : node.names) old.names.emplace_back(link.parent->nodeid, link.name);
      (node.is_directory() ? old.listings : old.attributes).push_back(node.nodeid);
    });
  }
  // An expired name keeps its dentry and the mounts on it. Errors are names that the kernel has forgotten.
  for (const uint64_t nodeid : old.listings) dispatcher.InvalidateInode(nodeid);
  for (const uint64_t nodeid : old.attributes) dispatcher.InvalidateAttributes(nodeid);
  size_t told = 0;
  for (; told < old.names.size() && doubt_.doubted(); ++told) {
    dispatcher.ExpireEntry(old.names[told].first, old.names[told].second);
  }
  const TreeLock lock(tree_);
  for (; told < absent; ++told) (void)doubt_.NoteAbsent(old.names[told].first, old.names[told].second);
  LiveFrame* frame = tree_.FrameLocked();
  if (frame == nullptr || absent == 0) return;
  frame->NoAbsent();
  for (const auto& [directory, name] : doubt_.absent()) frame->Absent(directory, name);
}

// --- notifications to it ---------------------------------------------------------------------------------------------

void KernelNotices::AddLocked(const LiveNotices& notices) {
  if (notices.empty()) return;
  const auto add = [](const auto& from, auto* to) { to->insert(to->end(), from.begin(), from.end()); };
  add(notices.names, &untold_.names);
  add(notices.listings, &untold_.listings);
  add(notices.attributes, &untold_.attributes);
  if (LiveFrame* frame = tree_.FrameLocked()) frame->Untold(notices);
}

void KernelNotices::ToldLocked(LiveNotices* told) {
  if (told->empty()) return;
  *told = {};
  LiveFrame* frame = tree_.FrameLocked();
  if (frame == nullptr) return;
  frame->Told();
  for (const LiveNotices* other : {&untold_, &left_untold_}) {
    if (!other->empty()) frame->Untold(*other);
  }
}

Status KernelNotices::Tell(Dispatcher& dispatcher, const LiveNotices& notices,
                           const std::vector<std::function<void()>>& waited, const Names& moved) {
  VRUN_TRY(Send(dispatcher, notices, waited, moved));
  const TreeLock lock(tree_);
  ToldLocked(&untold_);
  return {};
}

// Runs beside an Advance: a lookup that holds a lock that a notice needs may wait for home's next tree.
Status KernelNotices::TellRestored(Dispatcher& dispatcher) {
  LiveNotices notices;
  {
    const TreeLock lock(tree_);
    notices = left_untold_;
  }
  VRUN_TRY(Send(dispatcher, notices, {}, {}));
  const TreeLock lock(tree_);
  ToldLocked(&left_untold_);
  return {};
}

// Without any lock: the kernel takes the directory's own lock for these notices, and a holder of that lock may wait for
// our answer.
Status KernelNotices::Send(Dispatcher& dispatcher, const LiveNotices& notices,
                           const std::vector<std::function<void()>>& waited, const Names& moved) {
  int failure = 0;
  const auto note = [&](int error) {
    if (error != 0 && error != ENOENT) failure = error;
  };
  for (const uint64_t node : notices.listings) note(dispatcher.InvalidateInode(node));
  for (const uint64_t node : notices.attributes) note(dispatcher.InvalidateAttributes(node));
  // Lookups that wait for this news hold the locks that the next notices need; their names were expired.
  doubt_.Answered();
  for (const auto& waiter : waited) waiter();
  for (const auto& [parent, name] : notices.names) {
    // An expired name stays a name until somebody looks up it or the new one, so a process whose working directory it
    // is always has a path.
    const bool expire = dispatcher.can_expire() && moved.contains({parent, name});
    note(expire ? dispatcher.ExpireEntry(parent, name) : dispatcher.InvalidateEntry(parent, name));
  }
  if (failure != 0) return ErrnoError(failure, "invalidate names of a live view");
  return {};
}

void KernelNotices::ForgetAttributes(uint64_t nodeid) {
  const fuse_notify_inval_inode_out out{nodeid, -1, 0};
  Notify(transport_, FUSE_NOTIFY_INVAL_INODE, {reinterpret_cast<const char*>(&out), sizeof out}, {});
}

// --- the journal -----------------------------------------------------------------------------------------------------

void KernelNotices::Restore(LiveState* state) {
  left_untold_ = std::move(state->untold);
  for (const auto& [directory, name] : state->absent) (void)doubt_.NoteAbsent(directory, name);
}

void KernelNotices::AddToCheckpointLocked(LiveFrame* all) const {
  if (!untold_.empty()) all->Untold(untold_);
  if (!left_untold_.empty()) all->Untold(left_untold_);
  for (const auto& [directory, name] : doubt_.absent()) all->Absent(directory, name);
}

}  // namespace vrun::vfs
