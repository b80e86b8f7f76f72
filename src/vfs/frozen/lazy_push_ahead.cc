// SPDX-License-Identifier: Apache-2.0
// LazyRoot: decides which small files to push into the kernel, and when.
//
// A program that reads a small file of a directory is likely to read the next one. So after a read that needed a
// request, the following files that the kernel knows by name are pushed. Their number is a window, which grows with
// each such read of the directory, as read-ahead does. Pushed files need no request, so a reader that continues asks
// again where the window ended. A reader that stops costs at most one window.
#include <sys/stat.h>

#include <algorithm>

#include "base/thread/mutex.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/push/pusher.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kFirstPushWindow = 4;  // files
constexpr uint32_t kMostPushWindow = 128;
// The reader asks for the next few before a push can arrive; pushing those would only delay it (a file that is
// requested while it is pushed is read twice, and the push waits for the answer).
constexpr size_t kLead = 4;
constexpr size_t kScan = 1024;  // entries searched for candidates

}  // namespace

bool LazyRoot::MayPushLocked(const Inode& inode) const {
  return inode.pages == Inode::Pages::kUnknown && inode.lookups > 0 && S_ISREG(inode.mode) && inode.version.size > 0 &&
         inode.version.size <= Pusher::kMostBytes;
}

void LazyRoot::PushAfterRead(uint64_t nodeid) {
  if (!pusher_) return;
  std::vector<Pusher::Piece> files;
  {
    MutexLock lock(mutex_);
    Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || inode->version.size > Pusher::kMostBytes) return;
    inode->pages = Inode::Pages::kSent;
    Inode* parent = inode->link.parent;
    if (parent == nullptr) return;
    DirectoryState& directory = *parent->directory;
    directory.push_window = std::clamp(directory.push_window * 2, kFirstPushWindow, kMostPushWindow);
    uint32_t left = directory.push_window;
    const size_t count = directory.children.size();
    // The reader has caught up with the pusher, and would otherwise collide with it at each file from now on.
    for (size_t step = 1; step < std::min(count, kLead); ++step) {
      Inode* next = directory.children[(inode->link.index + step) % count];
      if (next != nullptr && next->pages == Inode::Pages::kQueued) next->pages = Inode::Pages::kUnknown;
    }
    for (size_t step = kLead; step < std::min(count, kScan) && left > 0; ++step) {
      Inode* next = directory.children[(inode->link.index + step) % count];
      if (next == nullptr || !MayPushLocked(*next)) continue;
      next->pages = Inode::Pages::kQueued;
      --left;
      files.push_back({.nodeid = next->nodeid,
                       .version = next->version,
                       .known_id = inodes_.KnownId(*next),
                       .length = next->version.size});
    }
  }
  pusher_->Post(std::move(files));
}

bool LazyRoot::ClaimPush(uint64_t nodeid) {
  MutexLock lock(mutex_);
  Inode* inode = inodes_.Find(nodeid);
  if (inode == nullptr || inode->pages != Inode::Pages::kQueued) return false;  // a reader was faster
  inode->pages = Inode::Pages::kSent;
  return true;
}

}  // namespace vrun::vfs
