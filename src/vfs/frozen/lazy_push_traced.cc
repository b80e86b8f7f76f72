// SPDX-License-Identifier: Apache-2.0
// LazyRoot: pushes content that a trace lists into the kernel as soon as the content is here and the kernel knows the
// file.
//
// A reader of content from a burst waits for nobody, but it still sends requests: each 16 KiB cost a request, two
// thread switches and a copy while the program stands still. With a push the copy is made in parallel.
//
// The kernel knows a file once it was looked up or listed. If it sends open requests (large files), nothing is pushed
// before the file is opened, because the view below knows the same names.
#include <sys/stat.h>

#include <algorithm>

#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/push/pusher.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

Pusher::Piece LazyRoot::PieceLocked(const Inode& inode, TracedFiles::Range range) const {
  return Pusher::Piece::Traced({.nodeid = inode.nodeid, .version = inode.version, .known_id = inodes_.KnownId(inode)},
                               range);
}

void LazyRoot::PushTraced(std::span<const uint64_t> nodeids, bool opened) {
  TracedFiles& traced = backend_.traced();
  if (!pusher_ || !traced.active() || opened != opens_are_seen()) return;
  std::vector<Pusher::Piece> pieces;
  {
    MutexLock lock(mutex_);
    for (const uint64_t nodeid : nodeids) {
      Inode* inode = inodes_.Find(nodeid);
      if (inode == nullptr || !S_ISREG(inode->mode)) continue;
      if (!opened && inode->version.size >= tree::kApartBytes) continue;  // read through the view above
      const auto ranges = traced.Of(inode->version);
      if (ranges.empty()) continue;
      traced_nodes_[inode->version] = nodeid;
      // Otherwise the kernel has what was here before, but not what arrives from now on.
      if (inode->pages != Inode::Pages::kUnknown) continue;
      inode->pages = Inode::Pages::kSent;
      for (const TracedFiles::Range& range : ranges) pieces.push_back(PieceLocked(*inode, range));
    }
  }
  pusher_->Post(std::move(pieces));
}

void LazyRoot::TraceArrived(const tree::FileVersion& version, TracedFiles::Range range) {
  if (!pusher_) return;
  std::vector<Pusher::Piece> pieces;
  {
    MutexLock lock(mutex_);
    const auto it = traced_nodes_.find(version);
    if (it == traced_nodes_.end()) return;
    if (const Inode* inode = inodes_.Find(it->second)) pieces.push_back(PieceLocked(*inode, range));
  }
  pusher_->Post(std::move(pieces));
}

void LazyRoot::TracesOver() {
  MutexLock lock(mutex_);
  traced_nodes_.clear();
}

}  // namespace vrun::vfs
