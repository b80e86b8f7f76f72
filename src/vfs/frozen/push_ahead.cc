// SPDX-License-Identifier: Apache-2.0
// LazyRoot: which small files are pushed into the kernel, and when.
//
// Whoever reads a small file of a directory is likely to read the next one. So a read that had to ask us is followed by
// pushing the files behind it, of those that the kernel knows by name: as many as a window, which grows with each such
// read of the directory, as read-ahead does. What is pushed is not asked for, so a reader who goes on asks again where
// the window ended; one who does not costs at most the window.
#include <sys/stat.h>

#include <algorithm>

#include "vfs/frozen/lazy_root.h"
#include "vfs/push/pusher.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kFirstPushWindow = 4;  // files
constexpr uint32_t kMostPushWindow = 128;
// The next few the reader asks for before a push can come; pushing those would only be in his way (one that is asked
// for when it is pushed is read twice, and the push waits for the answer).
constexpr size_t kLead = 4;
constexpr size_t kScan = 1024;  // entries looked at for them

}  // namespace

bool LazyRoot::MayPushLocked(const Inode& inode) const {
  return inode.pages == Inode::Pages::kUnknown && inode.lookups > 0 && S_ISREG(inode.mode) && inode.version.size > 0 &&
         inode.version.size <= Pusher::kMostBytes;
}

void LazyRoot::PushAfterRead(uint64_t nodeid) {
  if (!pusher_) return;
  std::vector<Pusher::Piece> files;
  {
    std::lock_guard lock(mutex_);
    Inode* inode = inodes_.Find(nodeid);
    if (inode == nullptr || inode->version.size > Pusher::kMostBytes) return;
    inode->pages = Inode::Pages::kSent;
    Inode* parent = inode->link.parent;
    if (parent == nullptr) return;
    DirectoryState& directory = *parent->directory;
    directory.push_window = std::clamp(directory.push_window * 2, kFirstPushWindow, kMostPushWindow);
    uint32_t left = directory.push_window;
    const size_t count = directory.children.size();
    // He has caught up with the pusher, which else would meet him at each file from now on.
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
  std::lock_guard lock(mutex_);
  Inode* inode = inodes_.Find(nodeid);
  if (inode == nullptr || inode->pages != Inode::Pages::kQueued) return false;  // a reader was faster
  inode->pages = Inode::Pages::kSent;
  return true;
}

}  // namespace vrun::vfs
