// SPDX-License-Identifier: Apache-2.0
// A view's LiveTree with its lock, the journal of the changes made under the lock, and the requests that wait for home
// to change it.
//
// Code that reads or changes the tree holds a TreeLock. On release, everything touched under the lock is appended to
// the journal as one frame, and the added operations may go home. Without a journal (Begin was never called) nothing is
// written and nothing goes home.
//
// Locks: the mutex is held for memory work, the append, and fstat of a backing file. The checkpoint's lock comes before
// it; those of the stream, the journal and the files come after it.
//
// Thread safety: any thread. Methods of LiveTree, and those that end in "Locked", need a TreeLock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/data/live_journal.h"
#include "vfs/live/data/live_stream.h"
#include "vfs/live/tree/home_news.h"
#include "vfs/live/tree/live_tree.h"

namespace vrun::vfs {

class Backend;

class JournaledTree : public LiveTree {
 public:
  // `home_tree`: the tree of home that the view shows, with root entry `root`. `on_released`: as LiveRootOptions.
  // `files` and `timers` must outlive it.
  JournaledTree(LiveFiles& files, TimerThread& timers, const Digest& home_tree, const tree::Entry& root, IdMap ids,
                std::function<void()> on_released)
      : LiveTree(root, std::move(ids)),
        files_(files),
        news_(timers, gate_),
        on_released_(std::move(on_released)),
        home_tree_(home_tree) {}

  // Starts journaling; call before the first request. `journal` and `stream` must outlive it. `state`: read from a
  // journal that another server of this view left. `in_checkpoint` adds the parts of the journal that others own;
  // called with a TreeLock.
  Status Begin(LiveJournal* journal, LiveStream* stream, LiveState* state, Backend& backend,
               std::function<void(LiveFrame*)> in_checkpoint);
  bool journaled() const { return journal_ != nullptr; }
  // REQUIRES: journaled().
  LiveStream& stream() const { return *stream_; }
  Status Flush() const { return journal_->Flush(); }

  LiveFiles& files() { return files_; }
  HomeNews& news() { return news_; }
  // Stops all Guarded callbacks; call before any part of the view is destroyed.
  void Close() { gate_->Close(); }
  template <typename Act>
  auto Guarded(Act act) const {
    return vfs::Guarded(gate_, std::move(act));
  }
  // Something counted by holds() is no longer in use; call without the lock.
  void Released() const {
    if (on_released_) on_released_();
  }

  const Digest& home_tree() const { return home_tree_; }  // Locked, like the methods of LiveTree
  void SetHomeTreeLocked(const Digest& tree);

  // Call before a change under this lock: 0, or ENOSPC if the journal has no room for it and `bytes` more.
  int ChangeLocked(uint64_t bytes = 0);
  // Further records for the journal at the end of this lock; null: there is no journal.
  LiveFrame* FrameLocked() { return journal_ != nullptr ? &frame_ : nullptr; }
  // Numbers the operation, and releases it to home once the journal has it.
  void AddLocked(LiveOperation operation);
  // Records that with the operations so far home has the current state: the rest was gone before home heard of it.
  void NothingToTellLocked();
  // A file was deleted again. True: home has not heard of it, and never will.
  bool TakeBackOperationsLocked(uint64_t nodeid);
  // Number of the last change that home knows with this operation. Call with ascending operations.
  uint64_t ChangesInLocked(uint64_t operation);

  // The methods below need no lock held.
  //
  // Asks for room on the journal's disk, and from the cache on that disk. 0 or an errno.
  int MakeRoom();
  // The same, for when there is no room even for ChangeLocked.
  void SeekRoom();
  // True if a writer need not wait for home or for the disk.
  bool HasRoom() const { return journal_ == nullptr || (stream_->HasRoom() && journal_->TakesChange()); }
  // Bytes that reads may add to the journal.
  uint64_t RoomForReading() const { return journal_ != nullptr ? journal_->RoomForReading() : UINT64_MAX; }
  void Checkpoint();

  // The current value, for callers without the lock.
  Digest HomeTreeNow() const;
  uint64_t ChangesNow() const;
  size_t SizeNow() const;

 private:
  friend class TreeLock;
  // Returns the number up to which operations may be sent; 0: no new ones.
  uint64_t WriteLocked();
  LiveState NumbersLocked();
  Status RestoreFrom(LiveState* state, Backend& backend);

  LiveFiles& files_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  HomeNews news_;
  const std::function<void()> on_released_;
  LiveJournal* journal_ = nullptr;  // const once begun, like stream_
  LiveStream* stream_ = nullptr;
  std::function<void(LiveFrame*)> in_checkpoint_;
  Mutex checkpoint_mutex_;  // held during a whole Checkpoint

  mutable Mutex mutex_;  // guards the tree and all members below
  Digest home_tree_;
  LiveFrame frame_;        // of the current lock
  bool changing_ = false;  // ChangeLocked was called under it
  size_t told_ = 0;        // operations in it, and calls of NothingToTellLocked
  // (operation, change): home was told of all changes up to `change` with operations up to `operation`. Ascending.
  std::deque<std::pair<uint64_t, uint64_t>> told_changes_;
  uint64_t included_changes_ = 0;
  std::vector<LiveOperation> taken_back_;  // until the journal has recorded it
};

// Holds the tree's mutex. Keeps resources of dropped nodes alive until it has been released.
class TreeLock {
 public:
  explicit TreeLock(JournaledTree& tree) : tree_(tree), lock_(tree.mutex_) {}
  ~TreeLock();

 private:
  JournaledTree& tree_;
  MutexLock lock_;
};

}  // namespace vrun::vfs
