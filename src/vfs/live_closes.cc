// SPDX-License-Identifier: Apache-2.0
// LiveRoot where the kernel does not ask for opens: what is closed is told by a CloseWatch. decisions/0019.
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "vfs/close_watch.h"
#include "vfs/live_root.h"

namespace vrun::vfs {

void LiveRoot::WatchCloses(CloseWatch* closes) {
  closes_ = closes;
  if (closes != nullptr && journal_ != nullptr) ClosesMissed();
}

void LiveRoot::SeeCloses() {
  if (CloseWatch* closes = closes_.load()) closes->Drain();
}

void LiveRoot::SettleCloses() {
  SeeCloses();
  WaitForWhole(kHomeMicros);
}

// A descriptor or mapping for writing is gone. Whoever else has the file open for writing is seen with his next write.
void LiveRoot::Closed(uint64_t nodeid) {
  std::shared_ptr<LiveFile> file;
  bool released = false, whole = false;
  {
    std::lock_guard lock(dirty_mutex_);
    dirty_.erase(nodeid);
  }
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return;
    released = std::exchange(node->writers, 0) > 0 && tree_.holds();
    node->dirty = node->truncated = false;
    file = node->file;
    if (!file) return;
    whole = file->complete() || !file->dirty();
    if (whole) (void)PublishLocked(node);
    TellIfLostLocked(node);
  }
  file->Pin(false);
  if (!whole) PublishWhole(nodeid, file, /*closed=*/true);
  if (released && options_.on_released) options_.on_released();
}

// The rest of it is home's, and goes from there with this version.
void LiveRoot::PublishWhole(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, bool closed) {
  NoteDirty(nodeid);
  {
    std::lock_guard lock(dirty_mutex_);
    const auto [it, first] = completing_.try_emplace(nodeid, 0);
    if (closed) ++it->second;
    if (!first) return;
  }
  const auto came = [this, nodeid, file](int /*error*/) {
    const bool appended = file->Appended() > 0;
    // What was only appended goes behind what is there. And where the rest did not come home knows whether it is still
    // over what it has, and says so if it is not. But not while its writer has gone on to change it in place.
    if (appended) Publish(nodeid);
    for (size_t published = 0;;) {
      {
        std::lock_guard lock(dirty_mutex_);
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
  NeedOwn(nodeid, file, {0, UINT64_MAX}, false, came, /*quietly=*/true);
}

void LiveRoot::ClosesMissed() {
  std::vector<uint64_t> perhaps;
  {
    const TreeLock lock(*this);
    tree_.ForEach([&](const LiveNode& node) {
      if (node.writers > 0 || (node.file && node.file->dirty())) perhaps.push_back(node.nodeid);
    });
  }
  for (const uint64_t nodeid : perhaps) Closed(nodeid);
}

void LiveRoot::WaitForWhole(int64_t micros) {
  std::unique_lock lock(dirty_mutex_);
  completed_.wait_for(lock, std::chrono::microseconds(micros), [this] { return completing_.empty(); });
}

}  // namespace vrun::vfs
