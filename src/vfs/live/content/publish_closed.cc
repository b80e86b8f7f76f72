// SPDX-License-Identifier: Apache-2.0
// Publisher with no-open: a CloseWatch reports closed files. decisions/0019.
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "vfs/live/content/publisher.h"
#include "vfs/live/kernel/close_watch.h"

namespace vrun::vfs {

void Publisher::WatchCloses(CloseWatch* closes) {
  closes_ = closes;
  if (closes != nullptr && tree_.journaled()) ClosesMissed();
}

void Publisher::SeeCloses() {
  if (CloseWatch* closes = closes_.load()) closes->Drain();
}

void Publisher::SettleCloses() {
  SeeCloses();
  WaitForWhole(HomeNews::kMicros);
}

// A descriptor or mapping for writing is gone. Other writers of the file are noticed with their next write.
void Publisher::Closed(uint64_t nodeid) {
  std::shared_ptr<LiveFile> file;
  bool released = false, whole = false;
  {
    MutexLock lock(dirty_mutex_);
    dirty_.erase(nodeid);
  }
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return;
    released = std::exchange(node->writers, 0) > 0 && tree_.holds();
    node->writing = LiveNode::Writing::kNothing;
    file = node->file;
    if (!file) return;
    whole = file->complete() || !file->dirty();
    if (whole) (void)PublishLocked(node);
    TellIfLostLocked(node);
  }
  file->Pin(false);
  if (!whole) PublishWhole(nodeid, file, /*closed=*/true);
  if (released) tree_.Released();
}

// Home loses the rest of its content with this version, so that is fetched first.
void Publisher::PublishWhole(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, bool closed) {
  {
    const int64_t now = MonotonicMicros();
    MutexLock lock(dirty_mutex_);
    dirty_.try_emplace(nodeid, Dirty{now, now});
    const auto [it, first] = completing_.try_emplace(nodeid, 0);
    if (closed) ++it->second;
    if (!first) return;
  }
  const auto came = [this, nodeid, file](int /*error*/) {
    const bool appended = file->Appended() > 0 || IsQuiet(nodeid);
    // Content that was only appended goes to the end of home's file. If the rest did not arrive, publish anyway: home
    // knows whether our base is still its version, and says so if not. But do not publish while the writer is changing
    // the file in place again.
    if (appended) Publish(nodeid);
    for (size_t published = 0;;) {
      {
        MutexLock lock(dirty_mutex_);
        const auto it = completing_.find(nodeid);
        if (it->second == published) {
          completing_.erase(it);
          completed_.notify_all();
          return;
        }
        published = it->second;
      }
      Publish(nodeid);
    }
  };
  contents_.Need(nodeid, file, {0, UINT64_MAX}, false, came, /*quietly=*/true);
}

void Publisher::ClosesMissed() {
  std::vector<uint64_t> perhaps;
  {
    const TreeLock lock(tree_);
    tree_.ForEach([&](const LiveNode& node) {
      if (node.writers > 0 || (node.file && node.file->dirty())) perhaps.push_back(node.nodeid);
    });
  }
  for (const uint64_t nodeid : perhaps) Closed(nodeid);
}

void Publisher::WaitForWhole(int64_t micros) {
  MutexLock lock(dirty_mutex_);
  completed_.wait_for(lock, std::chrono::microseconds(micros),
                      [this]() VRUN_REQUIRES(dirty_mutex_) { return completing_.empty(); });
}

}  // namespace vrun::vfs
