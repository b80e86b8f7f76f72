// SPDX-License-Identifier: Apache-2.0
// The LiveTree of a view with its lock, the journal that has what is changed under the lock, and those who wait for
// home to change it.
//
// Whoever reads or changes the tree holds a TreeLock. When it is released, what was touched under it is appended to the
// journal as one frame, and the operations that were added may go home. Without a journal (Begin was never called)
// nothing is written and nothing goes home.
//
// Locks: the mutex is held for memory work, the append, and fstat of a backing file. The checkpoint's comes before it;
// those of the stream, the journal and the files come after it.
//
// Thread safety: any thread. Methods of LiveTree, and those that end in "Locked", need a TreeLock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vfs/live/data/live_file.h"
#include "vfs/live/data/live_journal.h"
#include "vfs/live/data/live_stream.h"
#include "vfs/live/tree/home_news.h"
#include "vfs/live/tree/live_tree.h"

namespace vrun::vfs {

class Backend;

class JournaledTree : public LiveTree {
 public:
  // `home_tree`: the tree of home's that it shows, `root` its root. `on_released`: as LiveRootOptions. `files` and
  // `timers` must outlive it.
  JournaledTree(LiveFiles& files, TimerThread& timers, const Digest& home_tree, const tree::Entry& root, IdMap ids,
                std::function<void()> on_released)
      : LiveTree(root, std::move(ids)),
        files_(files),
        news_(timers, gate_),
        on_released_(std::move(on_released)),
        home_tree_(home_tree) {}

  // From now on there is a journal; before the first request. Both must outlive it. `state`: what the journal has, of
  // another process that served this view. `in_checkpoint` adds what others keep in the journal; with a TreeLock.
  Status Begin(LiveJournal* journal, LiveStream* stream, LiveState* state, Backend& backend,
               std::function<void(LiveFrame*)> in_checkpoint);
  bool journaled() const { return journal_ != nullptr; }
  // REQUIRES: journaled().
  LiveStream& stream() const { return *stream_; }
  Status Flush() const { return journal_->Flush(); }

  LiveFiles& files() { return files_; }
  HomeNews& news() { return news_; }
  // No callback that is Guarded runs any more; before any part of the view goes.
  void Close() { gate_->Close(); }
  template <typename Act>
  auto Guarded(Act act) const {
    return vfs::Guarded(gate_, std::move(act));
  }
  // What was holds() is not in use any more; without the lock.
  void Released() const {
    if (on_released_) on_released_();
  }

  const Digest& home_tree() const { return home_tree_; }  // Locked, as those of LiveTree
  void SetHomeTreeLocked(const Digest& tree);

  // Something is about to be changed under this lock: 0, or ENOSPC where the journal has no room for it, and `bytes`
  // more.
  int ChangeLocked(uint64_t bytes = 0);
  // What more goes into the journal at the end of this lock; null: there is no journal.
  LiveFrame* FrameLocked() { return journal_ != nullptr ? &frame_ : nullptr; }
  // Gives the operation its number, and sends it home once the journal has it.
  void AddLocked(LiveOperation operation);
  // With the operations up to now home has it as it is here: without what was gone before home heard of it.
  void NothingToTellLocked();
  // A file is gone again. True: home has heard nothing of it, and never will.
  bool TakeBackOperationsLocked(uint64_t nodeid);
  // Number of the last change that home knows of with this operation. Operations ascend.
  uint64_t ChangesInLocked(uint64_t operation);

  // All that follow: no lock held.
  // Has the journal's disk, and the cache on it, asked for room. 0 or an errno.
  int MakeRoom();
  // The same, where there is not even room for ChangeLocked.
  void SeekRoom();
  // A writer need not wait for home, or for the disk.
  bool HasRoom() const { return journal_ == nullptr || (stream_->HasRoom() && journal_->TakesChange()); }
  // Bytes that reading may add to the journal.
  uint64_t RoomForReading() const { return journal_ != nullptr ? journal_->RoomForReading() : UINT64_MAX; }
  void Checkpoint();

  // As of now, for whoever holds no lock.
  Digest HomeTreeNow() const;
  uint64_t ChangesNow() const;
  size_t SizeNow() const;

 private:
  friend class TreeLock;
  // Returned: operations up to this one may be sent; 0: there are no more than before.
  uint64_t WriteLocked();
  LiveState NumbersLocked();
  Status RestoreFrom(LiveState* state, Backend& backend);

  LiveFiles& files_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  HomeNews news_;
  const std::function<void()> on_released_;
  LiveJournal* journal_ = nullptr;  // const once begun, as the stream
  LiveStream* stream_ = nullptr;
  std::function<void(LiveFrame*)> in_checkpoint_;
  std::mutex checkpoint_mutex_;  // over all of a Checkpoint

  mutable std::mutex mutex_;  // guards the tree and all that follows
  Digest home_tree_;
  LiveFrame frame_;        // of this lock
  bool changing_ = false;  // ChangeLocked was asked under it
  size_t told_ = 0;        // operations in it, and NothingToTellLocked
  // (operation, change): all changes up to that one were told with operations up to that one. Ascending.
  std::deque<std::pair<uint64_t, uint64_t>> told_changes_;
  uint64_t included_changes_ = 0;
  std::vector<LiveOperation> taken_back_;  // until the journal knows
};

// Holds the tree's mutex, and keeps what goes with nodes that are dropped until it is released.
class TreeLock {
 public:
  explicit TreeLock(JournaledTree& tree) : tree_(tree), lock_(tree.mutex_) {}
  ~TreeLock();

 private:
  JournaledTree& tree_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace vrun::vfs
